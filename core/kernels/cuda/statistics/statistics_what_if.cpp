// accumulate_what_if_statistics on CUDA.
#include "core/ops/statistics.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <torch/library.h>

#include <algorithm>
#include <vector>

#include "core/kernels/cuda/blocks/block_tensors.h"
#include "core/kernels/cuda/device.h"
#include "core/kernels/cuda/quantize/launchers.h"
#include "core/kernels/cuda/statistics/launchers.h"

namespace telens::cuda {
namespace {

constexpr const char* kOperation = "accumulate_what_if_statistics";

// The largest number of x, FP32 [1], if a cast needs it in advance.
at::Tensor amax_for(const at::Tensor& x, FormatId input, const std::vector<ops::WhatIfCast>& casts,
                    const LaunchContext& context) {
  const auto needs_amax = [](const ops::WhatIfCast& cast) {
    return scheme(cast.mode).has_tensor_scale();
  };
  if (std::ranges::none_of(casts, needs_amax)) return {};
  at::Tensor amax = at::zeros({1}, x.options().dtype(at::kFloat));
  check_launch(kOperation, launch_amax_of_numbers(
                               {x.const_data_ptr(), x.numel(), amax.mutable_data_ptr<float>()},
                               input, context));
  return amax;
}

void accumulate(const at::Tensor& x, at::IntArrayRef formats, at::IntArrayRef modes,
                at::IntArrayRef squares, at::IntArrayRef columnwise, at::TensorList accumulators) {
  const std::vector<ops::WhatIfCast> casts =
      ops::check_what_if_statistics(x, {formats, modes, squares, columnwise}, accumulators);
  const FormatId input = ops::check_matrix(kOperation, x);
  const DeviceScope scope(kOperation, x);
  if (x.numel() == 0) return;
  const at::Tensor contiguous = x.contiguous();
  const at::Tensor amax = amax_for(contiguous, input, casts, scope.context());
  const std::int64_t blocks = what_if_grid(x.size(0), x.size(1));
  // A launch supports a few casts; more casts need more reads.
  for (std::size_t first = 0; first < casts.size(); first += kWhatIfCastsOfLaunch) {
    const std::size_t count = std::min<std::size_t>(kWhatIfCastsOfLaunch, casts.size() - first);
    const at::Tensor words = at::empty({static_cast<std::int64_t>(count), blocks, kCastSumsWords},
                                       accumulators[first].options());
    WhatIfArguments arguments{};
    arguments.x = as_matrix(contiguous);
    arguments.amax = amax.defined() ? amax.const_data_ptr<float>() : nullptr;
    arguments.cast_count = static_cast<int>(count);
    arguments.parts = reinterpret_cast<CastSums*>(words.mutable_data_ptr<std::int64_t>());
    for (std::size_t i = 0; i < count; ++i) {
      const ops::WhatIfCast& cast = casts[first + i];
      arguments.casts[i] = {cast.format, scheme(cast.mode).scale_format,
                            static_cast<int>(block_length(cast.mode)), cast.squares,
                            cast.columnwise};
    }
    check_launch(kOperation, launch_what_if_statistics(arguments, input, scope.context()));
    for (std::size_t i = 0; i < count; ++i) {
      auto* const result = accumulators[first + i].mutable_data_ptr<std::int64_t>();
      check_launch(kOperation, launch_merge(
                                   MergeArguments<CastSums>{
                                       arguments.parts + static_cast<std::int64_t>(i) * blocks,
                                       blocks, reinterpret_cast<CastSums*>(result), true},
                                   scope.context()));
    }
  }
}

}  // namespace
}  // namespace telens::cuda

TORCH_LIBRARY_IMPL(telens, CUDA, library) {
  library.impl("accumulate_what_if_statistics", TORCH_FN(telens::cuda::accumulate));
}
