// From amaxes to scales. All tensors FP32; nothing here waits for the device. A history may be some
// columns of a larger one: its rows may lie apart, the slots of a row may not.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string_view>
#include <vector>

namespace telens::ops {

// Current scaling: scale = fp8_max / max(amax, epsilon), of amax's shape; 1 where the amax is zero
// or not finite, FLT_MAX where the quotient is infinite; rounded down to a power of two on request.
at::Tensor scale_from_amax(const at::Tensor& amax, double fp8_max, double epsilon,
                           bool power_of_two);

// Delayed scaling: the amax of each slot of a history [length, slots], by "max" or "most_recent"
// (row 0 is the newest).
at::Tensor amax_of_history(const at::Tensor& amax_history, std::string_view algorithm);

// Delayed scaling: replaces scale [slots] by (fp8_max / amax) / 2^margin, or with power_of_two by
// 2^(floor(log2(fp8_max / amax)) - margin). An amax of zero or not finite keeps the scale, an
// infinite scale becomes FLT_MAX. amax, fp8_max: [slots].
void update_scale(const at::Tensor& amax, const at::Tensor& scale, const at::Tensor& fp8_max,
                  std::int64_t margin, bool power_of_two);

// Begins a new row: every row moves back by one place, the oldest is dropped, row 0 becomes zero.
void advance_history(const at::Tensor& amax_history);

// The end of an iteration for many layers: for each window what amax_of_history, update_scale and
// advance_history do, with one launch on CUDA. Window i is a history [length, slots], a scale
// [slots] and the largest value of its format; all on one device, no two of them overlap.
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

}  // namespace telens::ops
