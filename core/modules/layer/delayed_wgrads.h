// Gradients of weights that are made apart from the backward (delay_wgrad_compute), so that a
// pipeline can fill its bubbles with them.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

namespace telens {

struct GemmLayer;

// A tensor that a product will read, as it was when the product was put off.
class UnchangedTensor {
 public:
  UnchangedTensor(const char* name, const at::Tensor& tensor);
  // Throws UsageError, naming the layer, where the tensor was changed in place since.
  void check(const std::string& layer) const;

 private:
  const char* name_;
  at::Tensor tensor_;
  std::uint32_t version_;
};

// A product's result. The weight may be a part of a split one; an undefined gradient is in the
// weight's main_grad.
struct DelayedWgrad {
  at::Tensor weight;
  at::Tensor gradient;
};

// One layer's products that wait, oldest backward first. Several threads may put them.
class DelayedWgrads {
 public:
  // A product that is handed its layer, which it does not keep alive while it waits.
  using Product = std::function<DelayedWgrad(const std::shared_ptr<GemmLayer>&)>;

  // To be called in a backward, whose products belong together: a shared layer leaves several.
  void put(Product product);
  // Runs those of the oldest backward, and hands on what each makes; false where nothing waits.
  bool run_oldest(const std::shared_ptr<GemmLayer>& layer,
                  const std::function<void(const DelayedWgrad&)>& take);
  // Lets products go that are not run: all, or those of one backward, the oldest being number 0.
  void clear();
  void drop(std::size_t backward);
  bool is_empty();

 private:
  struct Waiting {
    int backward;
    Product product;
  };
  std::vector<Waiting> take_products(std::size_t backward);

  std::mutex mutex_;
  std::vector<Waiting> waiting_;
};

// Hands a gradient to the weight as a backward would: added to .grad, behind the weight's hooks.
// An undefined one does nothing.
void deliver_gradient(const DelayedWgrad& made);

}  // namespace telens
