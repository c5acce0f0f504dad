#include "core/modules/delayed_wgrads.h"

#include <torch/csrc/autograd/autograd.h>

#include <utility>

namespace telens {

void DelayedWgrads::put(Product product) {
  const std::scoped_lock lock(mutex_);
  waiting_.push_back(std::move(product));
}

bool DelayedWgrads::run_oldest(const std::shared_ptr<GemmLayer>& layer) {
  Product product;
  {
    const std::scoped_lock lock(mutex_);
    if (waiting_.empty()) return false;
    product = std::move(waiting_.front());
    waiting_.pop_front();
  }
  product(layer);
  return true;
}

void deliver_gradient(const at::Tensor& weight, const at::Tensor& gradient) {
  if (!gradient.defined()) return;
  // Parts of a split weight are behind the function that joined them.
  torch::autograd::backward({weight}, {gradient});
}

}  // namespace telens
