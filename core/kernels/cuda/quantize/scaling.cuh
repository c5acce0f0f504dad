// Device code. Scales from amaxes. There are a few numbers per layer, so each tensor uses one
// block.
#pragma once

#include "core/kernels/cuda/thread.cuh"
#include "core/ops/scale_formula.h"

namespace telens::cuda {

struct ScaleFromAmaxArguments {
  const float* amax;
  float* scale;
  std::int64_t size;
  float fp8_max;
  float epsilon;
  bool power_of_two;
};

template <typename Thread>
TELENS_DEVICE void scale_from_amax(const ScaleFromAmaxArguments& arguments, const Thread& thread) {
  for (std::int64_t i = thread.block() * kThreads + thread.index(); i < arguments.size;
       i += thread.blocks() * kThreads) {
    arguments.scale[i] = current_scale(arguments.amax[i], arguments.fp8_max, arguments.epsilon,
                                       arguments.power_of_two);
  }
}

// A history [length, slots]; `stride` elements separate two rows. Row 0 is the newest.
struct AmaxHistory {
  float* rows;
  std::int64_t length;
  std::int64_t slots;
  std::int64_t stride;

  // Returns the offset of element i in row-major order.
  TELENS_DEVICE std::int64_t offset(std::int64_t i) const {
    return stride == slots ? i : i / slots * stride + i % slots;
  }
};

// A NaN is larger than all numbers: the amax is then not finite, and the scale is kept.
TELENS_DEVICE float larger_or_nan(float a, float b) { return a != a || a > b ? a : b; }

// Returns the amax of a slot over the first `length` rows to all threads of the calling warp.
template <typename Thread>
TELENS_DEVICE float amax_of_slot(const AmaxHistory& history, std::int64_t length, std::int64_t slot,
                                 const Thread& thread) {
  float amax = history.rows[slot];
  for (std::int64_t row = thread.index() % kWarp; row < length; row += kWarp) {
    amax = larger_or_nan(history.rows[row * history.stride + slot], amax);
  }
  for (int mask = kWarp / 2; mask > 0; mask /= 2) {
    amax = larger_or_nan(thread.shuffle_xor(amax, mask), amax);
  }
  return amax;
}

struct AmaxOfHistoryArguments {
  AmaxHistory history;
  bool most_recent;  // true: row 0 only; false: the largest of all rows
  float* amax;       // [slots]
};

template <typename Thread>
TELENS_DEVICE void amax_of_history(const AmaxOfHistoryArguments& arguments, const Thread& thread) {
  const std::int64_t length = arguments.most_recent ? 1 : arguments.history.length;
  for (std::int64_t slot = thread.index() / kWarp; slot < arguments.history.slots;
       slot += kThreads / kWarp) {
    const float amax = amax_of_slot(arguments.history, length, slot, thread);
    if (thread.index() % kWarp == 0) arguments.amax[slot] = amax;
  }
}

struct UpdateScaleArguments {
  const float* amax;
  float* scale;
  const float* fp8_max;
  std::int64_t slots;
  int margin;
  bool power_of_two;
};

template <typename Thread>
TELENS_DEVICE void update_scale(const UpdateScaleArguments& arguments, const Thread& thread) {
  for (std::int64_t slot = thread.index(); slot < arguments.slots; slot += kThreads) {
    arguments.scale[slot] =
        delayed_scale(arguments.amax[slot], arguments.scale[slot], arguments.fp8_max[slot],
                      arguments.margin, arguments.power_of_two);
  }
}

// Moves every row back by one, in place from the last row on, and clears row 0.
template <typename Thread>
TELENS_DEVICE void advance_history(const AmaxHistory& history, const Thread& thread) {
  const std::int64_t slots = history.slots;
  std::int64_t end = (history.length - 1) * slots;
  while (end > 0) {
    const std::int64_t i = end - kThreads + thread.index();
    const float value = i >= 0 ? history.rows[history.offset(i)] : 0.0F;
    thread.sync();  // all threads have read; slots may be overwritten
    if (i >= 0) history.rows[history.offset(i + slots)] = value;
    thread.sync();
    end -= kThreads;
  }
  for (std::int64_t slot = thread.index(); slot < slots; slot += kThreads) {
    history.rows[slot] = 0.0F;
  }
}

// The end of an autocast region for many layers: block i applies amax_of_history, update_scale and
// advance_history to window i.
struct DelayedWindow {
  AmaxHistory history;
  float* scale;  // [slots]
  float fp8_max;
};

// The number of windows that fits a kernel's 4 KB of parameters.
inline constexpr int kWindowsOfLaunch = 80;

struct UpdateWindowsArguments {
  DelayedWindow windows[kWindowsOfLaunch];
  bool most_recent;
  int margin;
  bool power_of_two;
};
static_assert(sizeof(UpdateWindowsArguments) <= 4096);

template <typename Thread>
TELENS_DEVICE void update_windows(const UpdateWindowsArguments& arguments, const Thread& thread) {
  const DelayedWindow& window = arguments.windows[thread.block()];
  const std::int64_t length = arguments.most_recent ? 1 : window.history.length;
  for (std::int64_t slot = thread.index() / kWarp; slot < window.history.slots;
       slot += kThreads / kWarp) {
    const float amax = amax_of_slot(window.history, length, slot, thread);
    if (thread.index() % kWarp == 0) {
      window.scale[slot] = delayed_scale(amax, window.scale[slot], window.fp8_max, arguments.margin,
                                         arguments.power_of_two);
    }
  }
  thread.sync();  // every amax has been read
  advance_history(window.history, thread);
}

}  // namespace telens::cuda
