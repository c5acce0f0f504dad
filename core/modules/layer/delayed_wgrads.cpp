#include "core/modules/layer/delayed_wgrads.h"

#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/graph_task.h>

#include <algorithm>
#include <iterator>
#include <utility>

#include "core/base/error.h"
#include "core/ops/torch_internals.h"

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

// Removes the products of a backward from the queue. Returns none if there are fewer backwards.
std::vector<DelayedWgrads::Waiting> DelayedWgrads::take_products(std::size_t backward) {
  const std::scoped_lock lock(mutex_);
  std::vector<int> backwards;
  for (const Waiting& each : waiting_) {
    if (std::ranges::find(backwards, each.backward) == backwards.end()) {
      backwards.push_back(each.backward);
    }
  }
  std::vector<Waiting> taken;
  if (backward >= backwards.size()) return taken;
  const auto rest = std::stable_partition(
      waiting_.begin(), waiting_.end(),
      [&](const Waiting& each) { return each.backward == backwards[backward]; });
  std::move(waiting_.begin(), rest, std::back_inserter(taken));
  waiting_.erase(waiting_.begin(), rest);
  return taken;
}

bool DelayedWgrads::run_oldest(const std::shared_ptr<GemmLayer>& layer,
                               const std::function<void(const DelayedWgrad&)>& take) {
  const std::vector<Waiting> due = take_products(0);
  for (const Waiting& each : due) take(each.product(layer));
  return !due.empty();
}

// Frees the operands without the lock.
void DelayedWgrads::clear() {
  std::vector<Waiting> dropped;
  const std::scoped_lock lock(mutex_);
  dropped.swap(waiting_);
}

void DelayedWgrads::drop(std::size_t backward) { take_products(backward); }

bool DelayedWgrads::is_empty() {
  const std::scoped_lock lock(mutex_);
  return waiting_.empty();
}

void deliver_gradient(const DelayedWgrad& made) {
  if (!made.gradient.defined()) return;
  // The parts of a split weight precede the function that joined them in the graph.
  torch::autograd::backward({made.weight}, {made.gradient});
}

}  // namespace telens
