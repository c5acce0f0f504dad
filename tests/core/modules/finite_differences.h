// Gradients against central differences, element by element, as torch.autograd.gradcheck does.
#pragma once

#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/nn/module.h>

#include <cmath>
#include <functional>
#include <string>
#include <utility>
#include <vector>

namespace telens::test {

// FP64 tests that forward and backward formulas match, FP32 tests our own kernels.
struct Precision {
  const char* name;
  at::ScalarType dtype;
  double step;       // near the root, of third degree, of the rounding unit
  double tolerance;  // relative to 1 + |slope|
};
constexpr Precision kPrecisions[] = {{"FP64", at::kDouble, 1e-6, 1e-6},
                                     {"FP32", at::kFloat, 4e-3, 5e-3}};

struct NamedLeaf {
  std::string name;
  at::Tensor tensor;  // dense
};

inline NamedLeaf random_leaf(const std::string& name, at::IntArrayRef sizes, at::ScalarType dtype) {
  return {name, at::randn(sizes, dtype).set_requires_grad(true)};
}

using Function = std::function<std::vector<at::Tensor>()>;

// The results of a function as one number in double: the sum of all elements, each with its own
// weight.
class WeightedSum {
 public:
  explicit WeightedSum(Function function) : function_(std::move(function)) {}

  at::Tensor operator()() {
    const std::vector<at::Tensor> results = function_();
    at::Tensor sum = at::zeros({}, at::kDouble);
    for (std::size_t i = 0; i < results.size(); ++i) {
      if (weights_.size() == i) weights_.push_back(at::randn(results[i].sizes(), at::kDouble));
      sum = sum + (results[i].to(at::kDouble) * weights_[i]).sum();
    }
    return sum;
  }

 private:
  Function function_;
  std::vector<at::Tensor> weights_;
};

// The slope along one element, from the values at this distance on both sides.
template <typename T>
double slope_along(T& element, double distance, WeightedSum& value) {
  const T kept = element;
  element = static_cast<T>(kept + distance);
  const double above = element, value_above = value().template item<double>();
  element = static_cast<T>(kept - distance);
  const double below = element, value_below = value().template item<double>();
  element = kept;
  return (value_above - value_below) / (above - below);
}

// If two distances give two slopes, the function bends there (as ReLU at 0) and neither slope is a
// reference. Such elements are counted; there must be few.
template <typename T>
void expect_gradient(const NamedLeaf& leaf, const Precision& precision, WeightedSum& value,
                     int& corners) {
  ASSERT_TRUE(leaf.tensor.grad().defined()) << leaf.name << " has no gradient";
  const at::Tensor gradient = leaf.tensor.grad().contiguous();
  T* const elements = leaf.tensor.mutable_data_ptr<T>();
  for (std::int64_t i = 0; i < leaf.tensor.numel(); ++i) {
    const double slope = slope_along(elements[i], precision.step, value);
    const double nearer = slope_along(elements[i], precision.step / 2, value);
    const double bound = precision.tolerance * (1 + std::abs(slope));
    if (std::abs(slope - nearer) > bound) {
      ++corners;
      continue;
    }
    ASSERT_NEAR(gradient.const_data_ptr<T>()[i], slope, bound) << leaf.name << ", element " << i;
  }
}

// `function` computes from the leaves only, without random numbers.
inline void expect_gradients_of(const std::vector<NamedLeaf>& leaves, const Precision& precision,
                                Function function) {
  WeightedSum value(std::move(function));
  value().backward();
  const at::NoGradGuard no_grad;
  int corners = 0;
  std::int64_t elements = 0;
  for (const NamedLeaf& leaf : leaves) {
    elements += leaf.tensor.numel();
    if (precision.dtype == at::kDouble) {
      expect_gradient<double>(leaf, precision, value, corners);
    } else {
      expect_gradient<float>(leaf, precision, value, corners);
    }
  }
  EXPECT_LE(corners, elements / 10) << "of " << elements;
}

// Tests the gradients of the inputs and of all parameters of a module.
inline void expect_gradients_of(const torch::nn::Module& module, std::vector<NamedLeaf> inputs,
                                const Precision& precision, Function function) {
  for (const auto& item : module.named_parameters()) {
    inputs.push_back({item.key(), item.value()});
  }
  expect_gradients_of(inputs, precision, std::move(function));
}

}  // namespace telens::test
