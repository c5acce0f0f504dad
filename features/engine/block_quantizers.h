// Which quantizer stands for a block format where no recipe runs that says so.
#pragma once

#include <memory>

#include "core/quantization/block_quantizer.h"
#include "core/quantization/recipe.h"
#include "features/statistics/statistic_name.h"

namespace telens::features {

// That of the recipe's defaults for tensors of this role, to the given format (NVFP4 has no other
// than its own). It draws no random numbers: what NVFP4 would have rounded by chance is rounded to
// the nearest. Throws UsageError for a recipe without blocks.
std::shared_ptr<BlockQuantizer> default_block_quantizer(RecipeId recipe, FormatId format,
                                                        TensorRole role);

}  // namespace telens::features
