// Delayed scaling: a tensor's scale comes from the amaxes of earlier iterations, so quantizing
// reads the tensor once.
#pragma once

#include <ATen/core/Tensor.h>

#include <array>
#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "core/base/error.h"
#include "core/ops/scaling.h"
#include "core/quantization/recipe.h"

namespace telens {

// The amax history and scales of a direction (forward or backward). All tensors are FP32.
struct AmaxWindow {
  at::Tensor amax_history;  // [length, slots]; row 0 collects the running iteration
  at::Tensor scale;         // [slots]
  // Number of scale updates since this window was created. Observers use it to detect a stale
  // history. Shared with the quantizers.
  std::shared_ptr<std::atomic<std::int64_t>> updates =
      std::make_shared<std::atomic<std::int64_t>>(0);
  // Iterations since the last update, for DelayedScaling::interval.
  std::int64_t rows_since_update = 0;

  bool defined() const { return scale.defined(); }
};

// The windows for all GEMMs of a module, stored in one tensor per direction, which Transformer
// Engine's scripts read and write. The slots are ordered by GEMM; each GEMM uses a view.
class TELENS_EXPORT ModuleWindows {
 public:
  // Adds a GEMM and returns its number. Call it before the windows are created.
  std::int64_t add_gemm() { return gemms_++; }
  std::int64_t gemms() const { return gemms_; }

  // Returns the window for all GEMMs in one direction; undefined before prepare().
  const AmaxWindow& joined(bool backward) const { return joined_[backward ? 1 : 0]; }

  // Creates the windows for both directions (scales 1, history 0). If the length changes, keeps the
  // newest rows; if the device changes, keeps the values.
  void prepare(std::int64_t length, const at::Device& device);
  // Drops the windows.
  void forget() { joined_ = {}; }

  // Sets the tensors of `window` to views of a GEMM's slots. Its counters do not change.
  void view(bool backward, std::int64_t gemm, AmaxWindow& window) const;

 private:
  std::int64_t gemms_ = 0;
  std::array<AmaxWindow, 2> joined_;
};

enum class AmaxAlgorithm : std::uint8_t { max, most_recent };

struct TELENS_EXPORT DelayedScaling final : Recipe {
  // amax_history [length, slots] -> amax [slots], both FP32. Row 0 is the newest iteration.
  using AmaxFunction = std::function<at::Tensor(const at::Tensor& amax_history)>;
  // (amax [slots], old scale [slots], fp8_max [slots], recipe) -> new scale [slots].
  using ScaleFunction = std::function<at::Tensor(const at::Tensor& amax, const at::Tensor& scale,
                                                 const at::Tensor& fp8_max)>;

  std::int64_t margin = 0;  // the scale is divided by 2^margin
  std::int64_t amax_history_len = 1024;
  // Scales are computed in every interval-th iteration; the history records every iteration's
  // amaxes.
  std::int64_t interval = 1;
  std::variant<AmaxAlgorithm, AmaxFunction> amax_compute_algo = AmaxAlgorithm::max;
  ScaleFunction scaling_factor_compute_algo;  // empty: fp8_max / amax
  bool reduce_amax = true;                    // over the group of fp8_autocast
  // scale = 2^(floor(log2(fp8_max / amax)) - margin), Transformer Engine's first formula.
  bool power_of_2_scale = false;

  std::string_view name() const override { return "fp8_delayed_scaling"; }
  const DelayedScaling* as_delayed_scaling() const override { return this; }
  std::shared_ptr<Quantizer> make_quantizer(TensorRole role,
                                            DelayedScalingState* state) const override;
};

// The windows of a GEMM: its part of its module's windows.
class TELENS_EXPORT DelayedScalingState {
 public:
  // Adds a GEMM to `module`.
  explicit DelayedScalingState(
      std::shared_ptr<ModuleWindows> module = std::make_shared<ModuleWindows>())
      : module_(std::move(module)), gemm_(module_->add_gemm()) {}

  // Creates or resizes the module's windows for this recipe and device, and takes views of them.
  void prepare(const DelayedScaling& recipe, const at::Device& device);

  // Copies the values of another state: the next prepare() uses its scales and histories, or fresh
  // ones if it has none.
  void assign(const DelayedScalingState& other);

  // The window of a direction, and the slot of a role in it.
  AmaxWindow& window(bool backward) { return windows_[backward ? 1 : 0]; }
  const AmaxWindow& window(bool backward) const { return windows_[backward ? 1 : 0]; }
  static std::int64_t slot(TensorRole role) {
    return static_cast<std::int64_t>(role) - (is_backward(role) ? kForwardRoles : 0);
  }

  // Return 1-element views of a role's scale and running amax.
  at::Tensor scale(TensorRole role) const;
  at::Tensor running_amax(TensorRole role) const;

  // Returns the windows for all GEMMs of the module.
  const ModuleWindows& module() const { return *module_; }

 private:
  void take_views();

  std::shared_ptr<ModuleWindows> module_;
  std::int64_t gemm_;
  std::array<AmaxWindow, 2> windows_;
};

class DelayedScalingQuantizer final : public Quantizer {
 public:
  using Updates = std::shared_ptr<const std::atomic<std::int64_t>>;

  // scale, amax: FP32, 1 element; quantizing raises amax to the largest |x|. updates: the counter
  // of the history that the scale comes from; nullptr if it comes from none.
  DelayedScalingQuantizer(FormatId format, at::Tensor scale, at::Tensor amax, Usage usage = {},
                          Updates updates = {});

  ScalingMode mode() const override { return ScalingMode::tensor; }
  using Quantizer::quantize;
  QuantizedTensor quantize(const at::Tensor& x, Usage usage) const override;
  void quantize_into(const at::Tensor& x, QuantizedTensor& out) const override;
  void calibrate(const at::Tensor& x) const override;
  std::shared_ptr<Quantizer> copy() const override;
  bool quantizes_as(const Quantizer& other) const override;
  at::Tensor known_scale() const override { return scale_; }
  at::Tensor running_amax() const override { return amax_; }
  std::shared_ptr<Quantizer> frozen_at(at::Tensor scale) const override;
  std::optional<std::int64_t> history_updates() const override;

 private:
  at::Tensor scale_;
  at::Tensor amax_;
  Updates updates_;
};

// Ends an iteration for many windows: computes their scales from the histories and begins a new
// row. One operator call (one launch on a GPU) handles all windows with the same formula and
// device. Windows with user functions are updated one by one, and so are windows that only begin a
// new row (DelayedScaling::interval). If a user function throws, it does so in add(), before any
// window changes.
class WindowUpdates {
 public:
  // Ignores undefined windows. The window and the layer's name must live until run(). Throws
  // exceptions of the recipe's functions, and ShapeError if they do not return one value per slot.
  void add(AmaxWindow& window, const DelayedScaling& recipe, bool backward, std::string_view layer);

  // Updates all windows. Warns if a user function caused a scale that is not a positive finite
  // number for a tensor whose amax is not 0. (Unused slots have the amax 0.)
  void run();

 private:
  struct Group {
    ops::WindowFormula formula;
    at::Device device;
    ops::WindowUpdate windows;

    void add(const AmaxWindow& window, float fp8_max);
  };
  Group& find_group(const ops::WindowFormula& formula, const at::Device& device);

  // Results of the user functions, both [slots].
  struct UserScale {
    AmaxWindow* window;
    std::string_view layer;
    at::Tensor amax;
    at::Tensor scale;
    bool backward;
    bool has_scale_function;  // false: only amax_compute_algo is the user's
  };
  static UserScale user_scale(AmaxWindow& window, const DelayedScaling& recipe, bool backward,
                              std::string_view layer);
  void warn_of_bad_scales() const;

  std::vector<Group> groups_;
  std::vector<UserScale> user_scales_;
  std::vector<AmaxWindow*> updated_;  // both kinds of windows
  std::vector<AmaxWindow*> waiting_;  // keep their scales in this iteration
};

}  // namespace telens
