#include "core/modules/layer/delayed_wgrads.h"

#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/graph_task.h>

#include <algorithm>
#include <iterator>
#include <utility>

#include "core/base/error.h"
#include "core/ops/tensor_version.h"

namespace telens {

UnchangedTensor::UnchangedTensor(const char* name, const at::Tensor& tensor)
    : name_(name), tensor_(tensor), version_(get_version(tensor)) {}

void UnchangedTensor::check(const std::string& layer) const {
  const std::uint32_t version = get_version(tensor_);
  if (version == version_) return;
  raise<UsageError>(
      "{}: {} was changed in place between the backward and backward_dw, which still needs it for "
      "the weight's gradient (delay_wgrad_compute): it is at version {}, expected {}; change it "
      "after backward_dw, or change a copy",
      layer, name_, version, version_);
}

void DelayedWgrads::put(Product product) {
  const std::scoped_lock lock(mutex_);
  waiting_.push_back({torch::autograd::get_current_graph_task_id(), std::move(product)});
}

bool DelayedWgrads::run_oldest(const std::shared_ptr<GemmLayer>& layer) {
  std::vector<Waiting> due;
  {
    const std::scoped_lock lock(mutex_);
    if (waiting_.empty()) return false;
    const int oldest = waiting_.front().backward;
    const auto later =
        std::stable_partition(waiting_.begin(), waiting_.end(),
                              [&](const Waiting& each) { return each.backward == oldest; });
    std::move(waiting_.begin(), later, std::back_inserter(due));
    waiting_.erase(waiting_.begin(), later);
  }
  for (const Waiting& each : due) each.product(layer);
  return true;
}

void deliver_gradient(const at::Tensor& weight, const at::Tensor& gradient) {
  if (!gradient.defined()) return;
  // Parts of a split weight are behind the function that joined them.
  torch::autograd::backward({weight}, {gradient});
}

}  // namespace telens
