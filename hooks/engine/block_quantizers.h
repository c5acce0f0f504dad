// The quantizer of a block format where no recipe runs that names one.
#pragma once

#include <memory>

#include "core/quantization/block_quantizer.h"
#include "core/quantization/recipe.h"
#include "hooks/statistics/statistic_name.h"

namespace telens::features {

// The quantizer that the recipe's defaults give tensors of this role, to the given format (a packed
// FP4 recipe has no other than its own). It draws no random numbers: it rounds to the nearest
// throughout. Throws UsageError for a recipe without blocks.
std::shared_ptr<BlockQuantizer> default_block_quantizer(RecipeId id, FormatId format,
                                                        TensorRole role);

}  // namespace telens::features
