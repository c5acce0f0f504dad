// The amax histories and scales of delayed scaling, of all GEMMs of one module side by side.
#pragma once

#include <ATen/core/Tensor.h>

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>

#include "core/base/error.h"

namespace telens {

// The amax history and scales of one direction. All tensors FP32.
struct AmaxWindow {
  at::Tensor amax_history;  // [length, slots]; row 0 collects the running iteration
  at::Tensor scale;         // [slots]
  // Number of scale updates from the history since this window was made; lets observers detect a
  // stale history. Shared with the quantizers.
  std::shared_ptr<std::atomic<std::int64_t>> updates =
      std::make_shared<std::atomic<std::int64_t>>(0);
  // Iterations since the last update, for DelayedScaling::interval.
  std::int64_t rows_since_update = 0;

  bool defined() const { return scale.defined(); }
};

// The windows that a module's layers share, so that they can be read and written as one tensor, as
// Transformer Engine's scripts do: the slots of the first GEMM, of the second, ... Each GEMM works
// with a view.
class TELENS_EXPORT ModuleWindows {
 public:
  // The number of one more GEMM, before any window is made.
  std::int64_t add_gemm() { return gemms_++; }
  std::int64_t gemms() const { return gemms_; }

  // All GEMMs' of one direction; not defined before there is any.
  const AmaxWindow& joined(bool backward) const { return joined_[backward ? 1 : 0]; }

  // Makes the windows of both directions (scales 1, history 0); on a change of the length keeps the
  // newest rows, and the values on a change of the device.
  void prepare(std::int64_t length, const at::Device& device);
  // From here on there are none.
  void forget() { joined_ = {}; }

  // The slots of one GEMM: views, not of `window` itself, whose counter stays.
  void view(bool backward, std::int64_t gemm, AmaxWindow& window) const;

 private:
  std::int64_t gemms_ = 0;
  std::array<AmaxWindow, 2> joined_;
};

}  // namespace telens
