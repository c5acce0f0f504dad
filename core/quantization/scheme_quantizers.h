// The recipes and quantizers of the scaling schemes (core/formats/scheme.h): a new scheme joins
// here.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "core/quantization/quantized_tensor.h"
#include "core/quantization/quantizer.h"
#include "core/quantization/recipe.h"

namespace telens {

// The recipe with its default options.
std::shared_ptr<Recipe> default_recipe(RecipeId id);
// The same by Recipe::name(), of which recipe_names() has all. Throws UsageError for another one.
TELENS_EXPORT std::shared_ptr<Recipe> default_recipe(std::string_view name);
TELENS_EXPORT std::vector<std::string> recipe_names();

// A quantizer that makes tensors of this tensor's format, scaling, options and orientations.
// Per-tensor scales come from the amax of what it quantizes.
TELENS_EXPORT std::shared_ptr<Quantizer> quantizer_like(const QuantizedTensor& tensor);

}  // namespace telens
