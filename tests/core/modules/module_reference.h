// Plain implementations of the modules in double precision, as references.
#pragma once

#include <ATen/ATen.h>
#include <torch/nn/module.h>

#include <cmath>
#include <map>
#include <string>

#include "tests/core/double_reference.h"

namespace telens::test {

// Double-precision copies of a module's parameters by name. They are leaves.
class ReferenceParameters {
 public:
  explicit ReferenceParameters(const torch::nn::Module& module) {
    for (const auto& item : module.named_parameters()) {
      copies_[item.key()] = item.value().detach().to(at::kDouble).set_requires_grad(true);
    }
  }
  // Undefined where the module has no such parameter.
  at::Tensor operator[](const std::string& name) const {
    const auto found = copies_.find(name);
    return found == copies_.end() ? at::Tensor() : found->second;
  }
  // Compares the gradients of all parameters of the module with those of the copies.
  testing::AssertionResult gradients_near(const torch::nn::Module& module, double relative,
                                          double absolute) const {
    for (const auto& item : module.named_parameters()) {
      const auto result =
          near(item.value().grad(), copies_.at(item.key()).grad(), relative, absolute);
      if (!result) return testing::AssertionFailure() << item.key() << ": " << result.message();
    }
    return testing::AssertionSuccess();
  }

 private:
  std::map<std::string, at::Tensor> copies_;
};

// Sets all parameters to random values: a parameter of zero or one could hide an error.
inline void randomize(torch::nn::Module& module) {
  const at::NoGradGuard no_grad;
  for (at::Tensor& parameter : module.parameters()) {
    parameter.normal_(0, parameter.dim() > 1 ? 1 / std::sqrt(parameter.size(-1)) : 0.5);
  }
}

// LayerNorm with a bias, RMSNorm without, over the last dimension.
inline at::Tensor norm_reference(const at::Tensor& x, const at::Tensor& weight,
                                 const at::Tensor& bias) {
  if (bias.defined()) return at::layer_norm(x, {x.size(-1)}, weight, bias, 1e-5);
  return x * (x.square().mean(-1, true) + 1e-5).rsqrt() * weight;
}

inline at::Tensor linear_reference(const at::Tensor& x, const at::Tensor& weight,
                                   const at::Tensor& bias) {
  const at::Tensor product = at::matmul(x, weight.t());
  return bias.defined() ? product + bias : product;
}

// query [seq_q, batch, heads, d], key and value [seq_kv, batch, groups, d]; allowed broadcasts to
// [batch, heads, seq_q, seq_kv]. Returns [seq_q, batch, heads * d].
inline at::Tensor attention_reference(const at::Tensor& query, const at::Tensor& key,
                                      const at::Tensor& value, const at::Tensor& allowed) {
  const std::int64_t repeats = query.size(2) / key.size(2);
  const at::Tensor q = query.permute({1, 2, 0, 3});
  const at::Tensor k = key.repeat_interleave(repeats, 2).permute({1, 2, 0, 3});
  const at::Tensor v = value.repeat_interleave(repeats, 2).permute({1, 2, 0, 3});
  const at::Tensor scores = at::matmul(q, k.transpose(2, 3)) / std::sqrt(q.size(-1));
  const at::Tensor weights =
      scores.masked_fill(allowed.logical_not(), -std::numeric_limits<double>::infinity())
          .softmax(-1)
          .nan_to_num();  // a query that sees no key
  return at::matmul(weights, v).permute({2, 0, 1, 3}).flatten(2);
}

inline at::Tensor causal(std::int64_t seq_q, std::int64_t seq_kv, std::int64_t shift = 0) {
  return at::ones({seq_q, seq_kv}, at::kBool).tril(shift);
}

}  // namespace telens::test
