// AdamW (https://arxiv.org/abs/1711.05101) through LibTorch's fused kernel.
#pragma once

#include <ATen/core/Tensor.h>

#include <map>
#include <string>
#include <utility>
#include <vector>

namespace gpt {

struct AdamWOptions {
  double beta1 = 0.9;
  double beta2 = 0.95;
  double eps = 1e-8;
  double weight_decay = 0.1;
};

class AdamW {
 public:
  using NamedTensors = std::vector<std::pair<std::string, at::Tensor>>;

  AdamW(const NamedTensors& parameters, const AdamWOptions& options);

  // Updates the parameters from their gradients, and clears the gradients.
  void step(double learning_rate);

  // The state for a checkpoint, by name; step() changes these tensors in place.
  NamedTensors state() const;

 private:
  AdamWOptions options_;
  std::vector<std::string> names_;
  std::vector<at::Tensor> parameters_;
  std::vector<at::Tensor> averages_;          // running means of the gradients
  std::vector<at::Tensor> squared_averages_;  // running means of their squares
  std::vector<at::Tensor> steps_;
};

}  // namespace gpt
