// A tensor that comes as values which another layer has cast: its codes are made with that layer's
// scale, which gives the codes that those values have, and rounds nothing a second time.
#pragma once

#include <memory>

#include "core/quantization/quantizer.h"

namespace telens {

struct HandedCast {
  // FP32, 1 element: of the newest cast; undefined: none was made.
  at::Tensor scale = {};
};

// A quantizer that takes the scale of `cast`, as it is when it quantizes, and adds nothing to an
// amax history; where there is none it is `own`. Both have one scale a tensor.
std::shared_ptr<Quantizer> follow_cast(std::shared_ptr<Quantizer> own,
                                       std::shared_ptr<const HandedCast> cast);

}  // namespace telens
