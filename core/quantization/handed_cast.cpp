#include "core/quantization/handed_cast.h"

#include "core/quantization/delayed_scaling.h"

namespace telens {
namespace {

class FollowingQuantizer final : public Quantizer {
 public:
  FollowingQuantizer(std::shared_ptr<Quantizer> own, std::shared_ptr<const HandedCast> cast)
      : Quantizer(own->format(), own->usage()), own_(std::move(own)), cast_(std::move(cast)) {}

  // The work with the quantizer that counts now.
  template <typename Work>
  auto with(const Work& work) const {
    if (!cast_->scale.defined()) return work(*own_);
    return work(DelayedScalingQuantizer(format(), cast_->scale, at::Tensor(), usage()));
  }

  ScalingMode mode() const override { return own_->mode(); }
  using Quantizer::quantize;
  QuantizedTensor quantize(const at::Tensor& x, Usage usage) const override {
    return with([&](const Quantizer& quantizer) { return quantizer.quantize(x, usage); });
  }
  void quantize_into(const at::Tensor& x, QuantizedTensor& out) const override {
    with([&](const Quantizer& quantizer) { quantizer.quantize_into(x, out); });
  }
  void calibrate(const at::Tensor& x) const override {
    with([&](const Quantizer& quantizer) { quantizer.calibrate(x); });
  }
  std::shared_ptr<Quantizer> copy() const override {
    return std::make_shared<FollowingQuantizer>(*this);
  }
  at::Tensor known_scale() const override {
    return cast_->scale.defined() ? cast_->scale : own_->known_scale();
  }
  at::Tensor running_amax() const override {
    return cast_->scale.defined() ? at::Tensor() : own_->running_amax();
  }
  std::shared_ptr<Quantizer> frozen_at(at::Tensor scale) const override {
    return std::make_shared<DelayedScalingQuantizer>(format(), std::move(scale), at::Tensor(),
                                                     usage());
  }
  std::optional<std::int64_t> history_updates() const override { return own_->history_updates(); }

 private:
  std::shared_ptr<Quantizer> own_;
  std::shared_ptr<const HandedCast> cast_;
};

}  // namespace

std::shared_ptr<Quantizer> follow_cast(std::shared_ptr<Quantizer> own,
                                       std::shared_ptr<const HandedCast> cast) {
  return std::make_shared<FollowingQuantizer>(std::move(own), std::move(cast));
}

}  // namespace telens
