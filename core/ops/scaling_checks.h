// Argument checks of the scaling operators, the same on every device.
#pragma once

#include <ATen/core/Tensor.h>

#include <string_view>

namespace telens::ops {

void check_history(const char* operation, const at::Tensor& amax_history);
void check_algorithm(std::string_view algorithm);
void check_update_scale(const at::Tensor& amax, const at::Tensor& scale, const at::Tensor& fp8_max);
void check_update_windows(at::TensorList amax_histories, at::TensorList scales,
                          at::ArrayRef<double> fp8_max, std::string_view algorithm);

}  // namespace telens::ops
