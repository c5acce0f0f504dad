// Transformer Engine's variables about attention in FP8, read in each forward under a recipe with
// fp8_dpa: NVTE_DPA_FP8_RECIPE with NVTE_DPA_FP8_FORMAT, NVTE_DPA_FP8DS_AMAX_ALGO,
// NVTE_DPA_FP8DS_AMAX_HISTLEN and NVTE_DPA_FP8DS_REDUCE_AMAX, NVTE_FP8_DPA_BWD and
// NVTE_DPA_FP8CS_O_in_F16.
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
  // UsageError where a variable has another value than those that Transformer Engine has, and
  // where attention takes no such recipe.
  std::shared_ptr<const Recipe> of(const std::shared_ptr<const Recipe>& recipe);

 private:
  std::shared_ptr<const Recipe> given_;
  std::string variables_;
  std::shared_ptr<const Recipe> made_;
};

// False: the backward of an attention in FP8 runs in high precision.
bool has_fp8_backward();

// False: under current scaling the backward takes the output's codes where it sums up the output
// times its gradient.
bool has_output_in_high_precision();

}  // namespace telens
