// A hypothetical cast in blocks, whose error statistics are measured. No LibTorch.
#pragma once

#include "core/formats/format_id.h"
#include "core/formats/scheme.h"

namespace telens::ops {

// A cast by the quantizer of core/ops/block_quantize.h with its default options.
struct WhatIfCast {
  FormatId format;          // e4m3 or e5m2; packed: e2m1
  ScalingMode mode;         // any with blocks
  bool squares = false;     // blocks are squares, as they always are in block_2d
  bool columnwise = false;  // blocks run down the columns

  bool operator==(const WhatIfCast&) const = default;
};

}  // namespace telens::ops
