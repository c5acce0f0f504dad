// The kernel that an attention ran with and the reason, as the hook points report them.
#pragma once

#include <c10/core/ScalarType.h>

#include <string>
#include <string_view>

#include "core/formats/scheme.h"

namespace telens::ops {

struct AttentionChoice {
  std::string_view kernel = {};  // a literal, such as "flash attention"; "" if no kernel was chosen
  std::string reason = {};       // why no faster kernel was chosen; "" if there is none
  // The dtype in which the kernel receives queries, keys and values.
  at::ScalarType computed_in = at::kFloat;
  std::string_view widened_by = "the mask of scores is in this dtype";  // if not their dtype
  // The FP8 format to which the recipe casts them (fp8_dpa); "" if it does not cast them.
  std::string_view cast_to = {};
  ScalingMode cast_in = ScalingMode::tensor;  // the scaling of that cast
};

}  // namespace telens::ops
