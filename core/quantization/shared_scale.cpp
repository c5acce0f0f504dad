#include "core/quantization/shared_scale.h"

#include <torch/csrc/autograd/graph_task.h>

#include <algorithm>
#include <utility>

#include "core/quantization/delayed_scaling.h"

namespace telens {
namespace {

// More passes than run at the same time. A finished backward is never read again.
constexpr std::size_t kMostEntries = 64;

class SharedScaleQuantizer final : public Quantizer {
 public:
  SharedScaleQuantizer(std::shared_ptr<Quantizer> fallback,
                       std::shared_ptr<const SharedScale> shared)
      : Quantizer(fallback->format(), fallback->usage()),
        fallback_(std::move(fallback)),
        shared_(std::move(shared)) {}

  // Calls `work` with the quantizer to use now.
  template <typename Work>
  auto with_quantizer(const Work& work) const {
    const at::Tensor scale = shared_->get();
    if (!scale.defined()) return work(*fallback_);
    return work(DelayedScalingQuantizer(format(), scale, at::Tensor(), usage()));
  }

  ScalingMode mode() const override { return fallback_->mode(); }
  using Quantizer::quantize;
  QuantizedTensor quantize(const at::Tensor& x, Usage usage) const override {
    return with_quantizer([&](const Quantizer& quantizer) { return quantizer.quantize(x, usage); });
  }
  void quantize_into(const at::Tensor& x, QuantizedTensor& out) const override {
    with_quantizer([&](const Quantizer& quantizer) { quantizer.quantize_into(x, out); });
  }
  void calibrate(const at::Tensor& x) const override {
    with_quantizer([&](const Quantizer& quantizer) { quantizer.calibrate(x); });
  }
  std::shared_ptr<Quantizer> copy() const override {
    return std::make_shared<SharedScaleQuantizer>(*this);
  }
  at::Tensor known_scale() const override {
    const at::Tensor scale = shared_->get();
    return scale.defined() ? scale : fallback_->known_scale();
  }
  at::Tensor running_amax() const override {
    return shared_->get().defined() ? at::Tensor() : fallback_->running_amax();
  }
  std::shared_ptr<Quantizer> frozen_at(at::Tensor scale) const override {
    return std::make_shared<DelayedScalingQuantizer>(format(), std::move(scale), at::Tensor(),
                                                     usage());
  }
  std::optional<std::int64_t> history_updates() const override {
    return fallback_->history_updates();
  }

 private:
  std::shared_ptr<Quantizer> fallback_;
  std::shared_ptr<const SharedScale> shared_;
};

}  // namespace

SharedScale::Pass SharedScale::current_pass() {
  return {std::this_thread::get_id(), torch::autograd::get_current_graph_task_id()};
}

void SharedScale::publish(const at::Tensor& scale) {
  const Pass pass = current_pass();
  const std::lock_guard lock(mutex_);
  std::erase_if(entries_, [&](const Entry& each) { return each.pass == pass; });
  if (!scale.defined()) return;
  if (entries_.size() == kMostEntries) entries_.erase(entries_.begin());
  entries_.push_back({pass, scale});
}

at::Tensor SharedScale::get() const {
  const Pass pass = current_pass();
  const std::lock_guard lock(mutex_);
  const auto found = std::find_if(entries_.begin(), entries_.end(),
                                  [&](const Entry& each) { return each.pass == pass; });
  return found == entries_.end() ? at::Tensor() : found->scale;
}

std::shared_ptr<Quantizer> use_shared_scale(std::shared_ptr<Quantizer> fallback,
                                            std::shared_ptr<const SharedScale> shared) {
  return std::make_shared<SharedScaleQuantizer>(std::move(fallback), std::move(shared));
}

}  // namespace telens
