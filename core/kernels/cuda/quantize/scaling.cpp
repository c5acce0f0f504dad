// Scales from amaxes on CUDA.
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <torch/library.h>

#include "core/kernels/cuda/device.h"
#include "core/kernels/cuda/quantize/launchers.h"
#include "core/ops/scaling.h"

namespace telens::cuda {
namespace {

AmaxHistory get_history(const at::Tensor& amax_history) {
  return {amax_history.mutable_data_ptr<float>(), amax_history.size(0), amax_history.size(1),
          amax_history.stride(0)};
}

at::Tensor scale_from_amax_cuda(const at::Tensor& amax, double fp8_max, double epsilon,
                                bool power_of_two) {
  const DeviceScope scope("scale_from_amax", amax);
  const at::Tensor source = amax.contiguous();
  at::Tensor scale = at::empty_like(source);
  check_launch("scale_from_amax",
               launch_scale_from_amax(
                   {source.const_data_ptr<float>(), scale.mutable_data_ptr<float>(), source.numel(),
                    static_cast<float>(fp8_max), static_cast<float>(epsilon), power_of_two},
                   scope.context()));
  return scale;
}

at::Tensor amax_of_history_cuda(const at::Tensor& amax_history, c10::string_view algorithm) {
  ops::check_history("amax_of_history", amax_history);
  ops::check_algorithm(algorithm);
  const DeviceScope scope("amax_of_history", amax_history);
  at::Tensor amax = at::empty({amax_history.size(1)}, amax_history.options());
  check_launch("amax_of_history",
               launch_amax_of_history({get_history(amax_history), algorithm == "most_recent",
                                       amax.mutable_data_ptr<float>()},
                                      scope.context()));
  return amax;
}

void update_scale_cuda(const at::Tensor& amax, at::Tensor& scale, const at::Tensor& fp8_max,
                       std::int64_t margin, bool power_of_two) {
  ops::check_update_scale(amax, scale, fp8_max);
  check_same_device("update_scale", {scale, amax, fp8_max});
  const DeviceScope scope("update_scale", scale);
  check_launch("update_scale",
               launch_update_scale({amax.const_data_ptr<float>(), scale.mutable_data_ptr<float>(),
                                    fp8_max.const_data_ptr<float>(), scale.numel(),
                                    static_cast<int>(margin), power_of_two},
                                   scope.context()));
}

void advance_history_cuda(at::Tensor& amax_history) {
  ops::check_history("advance_history", amax_history);
  const DeviceScope scope("advance_history", amax_history);
  check_launch("advance_history",
               launch_advance_history(get_history(amax_history), scope.context()));
}

// The addresses are passed as kernel arguments: no copy and no synchronization.
void update_windows_cuda(at::TensorList amax_histories, at::TensorList scales,
                         at::ArrayRef<double> fp8_max, c10::string_view algorithm,
                         std::int64_t margin, bool power_of_two) {
  constexpr auto kName = "update_windows";
  ops::check_update_windows(amax_histories, scales, fp8_max, algorithm);
  if (scales.empty()) return;
  const DeviceScope scope(kName, scales[0]);
  UpdateWindowsArguments arguments{.windows = {},
                                   .most_recent = algorithm == "most_recent",
                                   .margin = static_cast<int>(margin),
                                   .power_of_two = power_of_two};
  int taken = 0;
  for (std::size_t i = 0; i < scales.size(); ++i) {
    arguments.windows[taken++] = {get_history(amax_histories[i]),
                                  scales[i].mutable_data_ptr<float>(),
                                  static_cast<float>(fp8_max[i])};
    if (taken == kWindowsOfLaunch || i + 1 == scales.size()) {
      check_launch(kName, launch_update_windows(arguments, taken, scope.context()));
      taken = 0;
    }
  }
}

}  // namespace
}  // namespace telens::cuda

TORCH_LIBRARY_IMPL(telens, CUDA, library) {
  library.impl("scale_from_amax", telens::cuda::scale_from_amax_cuda);
  library.impl("amax_of_history", telens::cuda::amax_of_history_cuda);
  library.impl("update_scale", telens::cuda::update_scale_cuda);
  library.impl("advance_history", telens::cuda::advance_history_cuda);
  library.impl("update_windows", telens::cuda::update_windows_cuda);
}
