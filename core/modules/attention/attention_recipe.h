// Transformer Engine's variables about attention in FP8, read in each forward under a recipe with
// fp8_dpa: NVTE_DPA_FP8_RECIPE with NVTE_DPA_FP8_FORMAT, NVTE_DPA_FP8DS_AMAX_ALGO,
// NVTE_DPA_FP8DS_AMAX_HISTLEN and NVTE_DPA_FP8DS_REDUCE_AMAX, NVTE_FP8_DPA_BWD and
// NVTE_DPA_FP8CS_O_in_F16.
#pragma once

#include <memory>
#include <string>

#include "core/quantization/recipe.h"

namespace telens {

// The recipes of an attention, according to Transformer Engine's variables, read in each forward
// under a recipe with fp8_dpa: NVTE_DPA_FP8_RECIPE with NVTE_DPA_FP8_FORMAT,
// NVTE_DPA_FP8DS_AMAX_ALGO, NVTE_DPA_FP8DS_AMAX_HISTLEN, NVTE_DPA_FP8DS_REDUCE_AMAX,
// NVTE_FP8_DPA_BWD and NVTE_DPA_FP8CS_O_in_F16. Keeps the most recent recipe: a new object would
// recreate the quantizers.
class AttentionRecipes {
 public:
  // recipe: the autocast's, with fp8_dpa. Returns nullptr if attention runs in high precision.
  // Throws UsageError for a variable value that Transformer Engine does not have, and for recipes
  // that attention does not support.
  std::shared_ptr<const Recipe> of(const std::shared_ptr<const Recipe>& recipe);

 private:
  std::shared_ptr<const Recipe> given_;
  std::string variables_;
  std::shared_ptr<const Recipe> made_;
};

// False if the backward of an FP8 attention runs in high precision.
bool has_fp8_backward();

// False if, under current scaling, the backward computes the sum of output times gradient from the
// output's codes.
bool has_output_in_high_precision();

}  // namespace telens
