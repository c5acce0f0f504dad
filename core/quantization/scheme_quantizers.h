// The recipes and quantizers of the scaling schemes (core/formats/scheme.h). A new scheme adds a
// row to each table.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "core/quantization/quantized_tensor.h"
#include "core/quantization/quantizer.h"
#include "core/quantization/recipe.h"

namespace telens {

// Returns the recipe with default options.
std::shared_ptr<Recipe> default_recipe(RecipeId id);
// Returns the recipe with this Recipe::name(). recipe_names() lists all. Throws UsageError for an
// unknown name.
TELENS_EXPORT std::shared_ptr<Recipe> default_recipe(std::string_view name);
TELENS_EXPORT std::vector<std::string> recipe_names();

// Returns a quantizer with this tensor's format, scaling, options and orientations. Per-tensor
// scales come from the amax of the tensor that it quantizes.
TELENS_EXPORT std::shared_ptr<Quantizer> quantizer_like(const QuantizedTensor& tensor);

}  // namespace telens
