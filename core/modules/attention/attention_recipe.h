// Transformer Engine's variables about attention in FP8, read in each forward under a recipe with
// fp8_dpa: NVTE_DPA_FP8_RECIPE with NVTE_DPA_FP8_FORMAT, NVTE_DPA_FP8DS_AMAX_ALGO,
// NVTE_DPA_FP8DS_AMAX_HISTLEN and NVTE_DPA_FP8DS_REDUCE_AMAX, and NVTE_FP8_DPA_BWD.
#pragma once

#include <memory>
#include <string>

#include "core/quantization/recipe.h"

namespace telens {

// The recipes of one attention. It keeps the newest, since quantizers are made anew for another
// object.
class AttentionRecipes {
 public:
  // recipe: the autocast's, with fp8_dpa. nullptr: attention runs in high precision. Throws
  // UsageError where a variable has another value than those that Transformer Engine has, or asks
  // for a recipe whose tensors have many scales.
  std::shared_ptr<const Recipe> of(const std::shared_ptr<const Recipe>& recipe);

 private:
  std::shared_ptr<const Recipe> given_;
  std::string variables_;
  std::shared_ptr<const Recipe> made_;
};

// False: the backward of an attention in FP8 runs in high precision.
bool has_fp8_backward();

}  // namespace telens
