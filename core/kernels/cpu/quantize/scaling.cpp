// Scales from amaxes on the CPU. There are a few numbers per layer, so plain loops suffice.
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <torch/library.h>

#include <algorithm>
#include <bit>
#include <cstdint>
#include <cstring>
#include <vector>

#include "core/ops/scale_formula.h"
#include "core/ops/scaling.h"

namespace telens {
namespace {

at::Tensor scale_from_amax(const at::Tensor& amax, double fp8_max, double epsilon,
                           bool power_of_two) {
  const at::Tensor source = amax.contiguous();
  at::Tensor scale = at::empty_like(source);
  const float* from = source.const_data_ptr<float>();
  float* to = scale.mutable_data_ptr<float>();
  for (std::int64_t i = 0; i < source.numel(); ++i) {
    to[i] = current_scale(from[i], static_cast<float>(fp8_max), static_cast<float>(epsilon),
                          power_of_two);
  }
  return scale;
}

// Rows that are compared together: they fill vectors for any number of slots.
constexpr std::int64_t kRowBlock = 16;

// A history [rows, slots]; `stride` elements separate two rows.
struct History {
  float* values;
  std::int64_t rows;
  std::int64_t slots;
  std::int64_t stride;

  explicit History(const at::Tensor& history)
      : values(history.mutable_data_ptr<float>()),
        rows(history.size(0)),
        slots(history.size(1)),
        stride(history.stride(0)) {}

  bool is_dense() const { return stride == slots || rows == 1; }
  float* row(std::int64_t index) const { return values + index * stride; }
  std::size_t bytes(std::int64_t count) const {
    return static_cast<std::size_t>(count * slots) * sizeof(float);
  }

  // Copies rows without gaps between them.
  void copy_rows(std::int64_t first, std::int64_t count, std::uint32_t* to) const {
    if (is_dense()) {
      std::memcpy(to, row(first), bytes(count));
      return;
    }
    for (std::int64_t i = 0; i < count; ++i) {
      std::memcpy(to + i * slots, row(first + i), bytes(1));
    }
  }
};

// The largest amax per slot in the first `rows`. Amaxes are not negative, and the bits of such
// floats have the order of their values. A NaN has the largest bits, so it becomes the maximum of
// its window: the amax is then not finite, and the scale is kept.
std::vector<std::uint32_t> largest_by_slot(const History& history, std::int64_t rows) {
  const std::int64_t slots = history.slots;
  const auto block = static_cast<std::size_t>(kRowBlock * slots);
  std::vector<std::uint32_t> largest(block, 0);
  std::vector<std::uint32_t> bits(block);
  for (std::int64_t row = 0; row < rows; row += kRowBlock) {
    const std::int64_t count = std::min(kRowBlock, rows - row);
    history.copy_rows(row, count, bits.data());
    const auto filled = static_cast<std::size_t>(count * slots);
    for (std::size_t i = 0; i < filled; ++i) largest[i] = std::max(largest[i], bits[i]);
  }
  for (std::size_t i = static_cast<std::size_t>(slots); i < block; ++i) {
    std::uint32_t& slot = largest[i % static_cast<std::size_t>(slots)];
    slot = std::max(slot, largest[i]);
  }
  return largest;
}

at::Tensor amax_of_history(const at::Tensor& amax_history, c10::string_view algorithm) {
  ops::check_history("amax_of_history", amax_history);
  ops::check_algorithm(algorithm);
  const std::int64_t length = algorithm == "max" ? amax_history.size(0) : 1;
  const std::int64_t slots = amax_history.size(1);
  at::Tensor amax = at::empty({slots}, amax_history.options());
  const auto largest = largest_by_slot(History(amax_history), length);
  std::memcpy(amax.mutable_data_ptr<float>(), largest.data(),
              static_cast<std::size_t>(slots) * sizeof(float));
  return amax;
}

void update_scale(const at::Tensor& amax, at::Tensor& scale, const at::Tensor& fp8_max,
                  std::int64_t margin, bool power_of_two) {
  ops::check_update_scale(amax, scale, fp8_max);
  const float* amaxes = amax.const_data_ptr<float>();
  const float* maxima = fp8_max.const_data_ptr<float>();
  float* scales = scale.mutable_data_ptr<float>();
  for (std::int64_t slot = 0; slot < scale.numel(); ++slot) {
    scales[slot] = delayed_scale(amaxes[slot], scales[slot], maxima[slot], static_cast<int>(margin),
                                 power_of_two);
  }
}

void begin_row(const History& history) {
  if (history.is_dense()) {
    std::memmove(history.row(1), history.row(0), history.bytes(history.rows - 1));
  } else {
    for (std::int64_t row = history.rows - 1; row > 0; --row) {
      std::memcpy(history.row(row), history.row(row - 1), history.bytes(1));
    }
  }
  std::memset(history.row(0), 0, history.bytes(1));
}

void advance_history(at::Tensor& amax_history) {
  ops::check_history("advance_history", amax_history);
  begin_row(History(amax_history));
}

void update_windows(at::TensorList amax_histories, at::TensorList scales,
                    at::ArrayRef<double> fp8_max, c10::string_view algorithm, std::int64_t margin,
                    bool power_of_two) {
  ops::check_update_windows(amax_histories, scales, fp8_max, algorithm);
  for (std::size_t i = 0; i < scales.size(); ++i) {
    const History history(amax_histories[i]);
    const std::int64_t length = algorithm == "max" ? history.rows : 1;
    const auto largest = largest_by_slot(history, length);
    float* scale = scales[i].mutable_data_ptr<float>();
    for (std::size_t slot = 0; slot < static_cast<std::size_t>(history.slots); ++slot) {
      scale[slot] =
          delayed_scale(std::bit_cast<float>(largest[slot]), scale[slot],
                        static_cast<float>(fp8_max[i]), static_cast<int>(margin), power_of_two);
    }
    begin_row(history);
  }
}

}  // namespace
}  // namespace telens

TORCH_LIBRARY_IMPL(telens, CPU, library) {
  library.impl("scale_from_amax", telens::scale_from_amax);
  library.impl("amax_of_history", telens::amax_of_history);
  library.impl("update_scale", telens::update_scale);
  library.impl("advance_history", telens::advance_history);
  library.impl("update_windows", telens::update_windows);
}
