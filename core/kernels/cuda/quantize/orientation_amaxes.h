// The amaxes from which the scales of a tensor's two orientations are computed, on its device.
#pragma once

#include <ATen/ops/zeros.h>

#include <optional>
#include <string_view>

#include "core/kernels/cuda/device.h"
#include "core/kernels/cuda/quantize/launchers.h"

namespace telens::cuda {

// The largest number of a tensor, FP32 [1], unless it is given for both orientations.
class OrientationAmaxes {
 public:
  OrientationAmaxes(std::string_view operation, const std::optional<at::Tensor>& given,
                    const LaunchContext& context)
      : operation_(operation),
        given_(given ? given->contiguous() : at::Tensor()),
        context_(context) {}

  // orientation: 0 rowwise, 1 columnwise.
  at::Tensor of(const at::Tensor& contiguous, FormatId format, std::int64_t orientation) const {
    if (given_.defined()) return given_.narrow(0, orientation, 1);
    at::Tensor amax = at::zeros({1}, contiguous.options().dtype(at::kFloat));
    check_launch(operation_,
                 launch_amax_of_numbers({contiguous.const_data_ptr(), contiguous.numel(),
                                         amax.mutable_data_ptr<float>()},
                                        format, context_));
    return amax;
  }
  bool are_given() const { return given_.defined(); }

 private:
  std::string_view operation_;
  at::Tensor given_;
  const LaunchContext& context_;
};

}  // namespace telens::cuda
