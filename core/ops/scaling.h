// Computes scales from amaxes. All tensors are FP32, and no function waits for the device. A
// history may consist of some columns of a larger one: its rows may be apart in memory, but the
// slots of a row are contiguous.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string_view>
#include <vector>

namespace telens::ops {

// Current scaling: returns scale = fp8_max / max(amax, epsilon), of amax's shape; 1 if the amax is
// zero or not finite, FLT_MAX if the quotient is infinite; optionally rounded down to a power of
// two.
at::Tensor scale_from_amax(const at::Tensor& amax, double fp8_max, double epsilon,
                           bool power_of_two);

// Delayed scaling: returns the amax for each slot of a history [length, slots], by "max" or
// "most_recent" (row 0 is the newest).
at::Tensor amax_of_history(const at::Tensor& amax_history, std::string_view algorithm);

// Delayed scaling: replaces scale [slots] by (fp8_max / amax) / 2^margin or, with power_of_two, by
// 2^(floor(log2(fp8_max / amax)) - margin). If an amax is zero or not finite, the scale is kept; an
// infinite scale becomes FLT_MAX. amax, fp8_max: [slots].
void update_scale(const at::Tensor& amax, const at::Tensor& scale, const at::Tensor& fp8_max,
                  std::int64_t margin, bool power_of_two);

// Begins a new row: moves every row back by one place, drops the oldest row, and sets row 0 to
// zero.
void advance_history(const at::Tensor& amax_history);

// The end of an iteration for many layers: runs amax_of_history, update_scale and advance_history
// for each window, with one launch on CUDA. Window i is a history [length, slots], a scale [slots]
// and the largest value of its format. All are on one device, and no two of them overlap.
struct WindowUpdate {
  std::vector<at::Tensor> amax_histories = {};
  std::vector<at::Tensor> scales = {};
  std::vector<double> fp8_max = {};
};
struct WindowFormula {
  std::string_view algorithm = "max";  // or "most_recent"
  std::int64_t margin = 0;
  bool power_of_two = false;

  bool operator==(const WindowFormula&) const = default;
};
void update_windows(const WindowUpdate& windows, const WindowFormula& formula);

// Argument checks of the scaling operators, the same on every device.
void check_history(const char* operation, const at::Tensor& amax_history);
void check_algorithm(std::string_view algorithm);
void check_update_scale(const at::Tensor& amax, const at::Tensor& scale, const at::Tensor& fp8_max);
void check_update_windows(at::TensorList amax_histories, at::TensorList scales,
                          at::ArrayRef<double> fp8_max, std::string_view algorithm);

}  // namespace telens::ops
