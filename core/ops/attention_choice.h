// The kernel that an attention ran with, and the reason: what the hook points tell of it.
#pragma once

#include <c10/core/ScalarType.h>

#include <string>
#include <string_view>

#include "core/formats/scheme.h"

namespace telens::ops {

struct AttentionChoice {
  std::string_view kernel = {};  // a literal, such as "flash attention"; "": nothing was chosen
  std::string reason = {};       // why not a faster one; "": there is none
  // The dtype in which the kernel gets queries, keys and values.
  at::ScalarType computed_in = at::kFloat;
  std::string_view widened_by = "the mask of scores is in this dtype";  // where it is not theirs
  // The FP8 format that the recipe casts them to (fp8_dpa); "": it casts none.
  std::string_view cast_to = {};
  ScalingMode cast_in = ScalingMode::tensor;  // and its scaling
};

}  // namespace telens::ops
