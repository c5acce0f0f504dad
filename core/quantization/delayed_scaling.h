// Delayed scaling: a tensor's scale comes from the amaxes of earlier iterations.
//
// As in Transformer Engine today: scale = (fp8_max / amax) / 2^margin with the amax of a history
// window; an amax of zero or not finite keeps the scale, an infinite scale becomes FLT_MAX.
#pragma once

#include <ATen/core/Tensor.h>

#include <array>
#include <atomic>
#include <functional>
#include <memory>
#include <utility>
#include <variant>

#include "core/quantization/amax_window.h"
#include "core/quantization/recipe.h"

namespace telens {

enum class AmaxAlgorithm : std::uint8_t { max, most_recent };

struct TELENS_EXPORT DelayedScaling final : Recipe {
  // amax_history [length, slots] -> amax [slots], both FP32. Row 0 is the newest iteration, row 1
  // the one before it.
  using AmaxFunction = std::function<at::Tensor(const at::Tensor& amax_history)>;
  // (amax [slots], old scale [slots], fp8_max [slots], recipe) -> new scale [slots].
  using ScaleFunction = std::function<at::Tensor(const at::Tensor& amax, const at::Tensor& scale,
                                                 const at::Tensor& fp8_max)>;

  std::int64_t margin = 0;  // the scale is divided by 2^margin
  std::int64_t amax_history_len = 1024;
  // Scales are computed in every interval-th iteration; the history takes the amaxes of all.
  std::int64_t interval = 1;
  std::variant<AmaxAlgorithm, AmaxFunction> amax_compute_algo = AmaxAlgorithm::max;
  ScaleFunction scaling_factor_compute_algo;  // empty: the formula above
  bool reduce_amax = true;                    // over the group of fp8_autocast
  // scale = 2^(floor(log2(fp8_max / amax)) - margin), Transformer Engine's first formula.
  bool power_of_2_scale = false;

  std::string_view name() const override { return "fp8_delayed_scaling"; }
  const DelayedScaling* as_delayed_scaling() const override { return this; }
  std::shared_ptr<Quantizer> make_quantizer(TensorRole role,
                                            DelayedScalingState* state) const override;
};

// A layer's state under delayed scaling, both directions: its GEMM's part of its module's windows.
class TELENS_EXPORT DelayedScalingState {
 public:
  // A GEMM more in `module`.
  explicit DelayedScalingState(
      std::shared_ptr<ModuleWindows> module = std::make_shared<ModuleWindows>())
      : module_(std::move(module)), gemm_(module_->add_gemm()) {}

  // Makes the windows of the module, or those of another history length or device, and takes its
  // own part.
  void prepare(const DelayedScaling& recipe, const at::Device& device);

  // Takes over the values of another state: from the next prepare() on, the same scales and
  // histories; fresh ones where that one has none.
  void assign(const DelayedScalingState& other);

  // The window of the roles' direction and the slot of a role in it.
  AmaxWindow& window(bool backward) { return windows_[backward ? 1 : 0]; }
  const AmaxWindow& window(bool backward) const { return windows_[backward ? 1 : 0]; }
  static std::int64_t slot(TensorRole role) {
    return static_cast<std::int64_t>(role) - (is_backward(role) ? kForwardRoles : 0);
  }

  // 1-element views of a role's scale and of its running amax.
  at::Tensor scale(TensorRole role) const;
  at::Tensor running_amax(TensorRole role) const;

  // Those of all GEMMs of the module.
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

  // scale, amax: FP32, 1 element; amax takes the largest |x| seen. updates: of the history that the
  // scale comes from; null: of none.
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

}  // namespace telens
