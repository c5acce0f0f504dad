// Gradients of weights that are made apart from the backward (delay_wgrad_compute), so that a
// pipeline can fill its bubbles with them.
#pragma once

#include <ATen/core/Tensor.h>

#include <deque>
#include <functional>
#include <memory>
#include <mutex>

namespace telens {

struct GemmLayer;

// One layer's products that wait, oldest first. Backwards put them, of several threads if need be.
class DelayedWgrads {
 public:
  // A product that is handed its layer, which it does not keep alive while it waits.
  using Product = std::function<void(const std::shared_ptr<GemmLayer>&)>;

  void put(Product product);
  // Runs the oldest; false where nothing waits.
  bool run_oldest(const std::shared_ptr<GemmLayer>& layer);

 private:
  std::mutex mutex_;
  std::deque<Product> waiting_;
};

// Hands a gradient to the weight as a backward would: added to .grad, behind the weight's hooks.
// An undefined one does nothing.
void deliver_gradient(const at::Tensor& weight, const at::Tensor& gradient);

}  // namespace telens
