#include "core/quantization/handed_cast.h"

#include <torch/csrc/autograd/graph_task.h>

#include <algorithm>
#include <utility>

#include "core/quantization/delayed_scaling.h"

namespace telens {
namespace {

// More calls than run at one time; a backward's is never asked for again.
constexpr std::size_t kMostHanded = 64;

class FollowingQuantizer final : public Quantizer {
 public:
  FollowingQuantizer(std::shared_ptr<Quantizer> own, std::shared_ptr<const HandedCast> cast)
      : Quantizer(own->format(), own->usage()), own_(std::move(own)), cast_(std::move(cast)) {}

  // The work with the quantizer that counts now.
  template <typename Work>
  auto with(const Work& work) const {
    const at::Tensor scale = cast_->scale();
    if (!scale.defined()) return work(*own_);
    return work(DelayedScalingQuantizer(format(), scale, at::Tensor(), usage()));
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
    const at::Tensor scale = cast_->scale();
    return scale.defined() ? scale : own_->known_scale();
  }
  at::Tensor running_amax() const override {
    return cast_->scale().defined() ? at::Tensor() : own_->running_amax();
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

HandedCast::Call HandedCast::this_call() {
  return {std::this_thread::get_id(), torch::autograd::get_current_graph_task_id()};
}

void HandedCast::hand(const at::Tensor& scale) {
  const Call call = this_call();
  const std::lock_guard lock(mutex_);
  std::erase_if(handed_, [&](const Handed& each) { return each.call == call; });
  if (!scale.defined()) return;
  if (handed_.size() == kMostHanded) handed_.erase(handed_.begin());
  handed_.push_back({call, scale});
}

at::Tensor HandedCast::scale() const {
  const Call call = this_call();
  const std::lock_guard lock(mutex_);
  const auto found = std::find_if(handed_.begin(), handed_.end(),
                                  [&](const Handed& each) { return each.call == call; });
  return found == handed_.end() ? at::Tensor() : found->scale;
}

std::shared_ptr<Quantizer> follow_cast(std::shared_ptr<Quantizer> own,
                                       std::shared_ptr<const HandedCast> cast) {
  return std::make_shared<FollowingQuantizer>(std::move(own), std::move(cast));
}

}  // namespace telens
