// Weight gradients computed after the backward (delay_wgrad_compute), which let a pipeline fill its
// bubbles.
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

// An operand of a delayed GEMM and its version.
class UnchangedTensor {
 public:
  UnchangedTensor(const char* name, const at::Tensor& tensor);
  // Throws UsageError, naming the layer, if the tensor was modified in place.
  void check(const std::string& layer) const;

 private:
  const char* name_;
  at::Tensor tensor_;
  std::uint32_t version_;
};

// The result of a delayed GEMM. The weight may be a part of a split one. `gradient` is undefined if
// it was added to main_grad.
struct DelayedWgrad {
  at::Tensor weight;
  at::Tensor gradient;
};

// The pending weight gradients of a layer, oldest backward first. put() is thread-safe.
class DelayedWgrads {
 public:
  // Computes a weight gradient. Receives its layer as an argument and does not keep it alive.
  using Product = std::function<DelayedWgrad(const std::shared_ptr<GemmLayer>&)>;

  // Call in a backward. The products of a backward are run together: a shared layer adds several.
  void put(Product product);
  // Computes the wgrads of the oldest pending backward and passes each to `take`. Returns false if
  // none is pending.
  bool run_oldest(const std::shared_ptr<GemmLayer>& layer,
                  const std::function<void(const DelayedWgrad&)>& take);
  // Discard pending products: all, or only those from one backward (0: the oldest).
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

// Accumulates a gradient like a backward: runs the weight's hooks and adds to .grad. Ignores an
// undefined gradient.
void deliver_gradient(const DelayedWgrad& made);

}  // namespace telens
