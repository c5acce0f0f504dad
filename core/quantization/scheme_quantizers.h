// The recipes and quantizers of the scaling schemes (core/formats/scheme.h): a new scheme joins
// here.
#pragma once

#include <memory>

#include "core/quantization/quantized_tensor.h"
#include "core/quantization/quantizer.h"
#include "core/quantization/recipe.h"

namespace telens {

// The recipe with its default options.
std::shared_ptr<Recipe> default_recipe(RecipeId id);

// A quantizer that makes tensors of this tensor's format, scaling, options and orientations.
// Per-tensor scales come from the amax of what it quantizes.
TELENS_EXPORT std::shared_ptr<Quantizer> quantizer_like(const QuantizedTensor& tensor);

}  // namespace telens
