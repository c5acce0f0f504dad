// The quantizers of block formats for features, if the running recipe has no such quantizer.
#pragma once

#include <memory>

#include "core/formats/scheme.h"
#include "core/quantization/block_scaling.h"
#include "core/quantization/recipe.h"

namespace telens::features {

// Returns the quantizer of the recipe's defaults for tensors of this role, with the given format (a
// packed FP4 recipe has only its own format). It rounds to nearest and draws no random numbers.
// Throws InternalError for a recipe without blocks.
std::shared_ptr<BlockQuantizer> default_block_quantizer(RecipeId id, FormatId format,
                                                        TensorRole role);

}  // namespace telens::features
