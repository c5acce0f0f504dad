// The terms that attention adds to its scores before the softmax.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <vector>

#include "core/modules/attention/attention_arguments.h"
#include "core/modules/attention/attention_mask.h"

namespace telens {

// ALiBi's slopes (https://arxiv.org/abs/2108.12409), FP32 [heads]. With n the largest power of two
// up to heads: 2^(-8 k / n) for k = 1 .. n, then 2^(-4 k / n) for odd k.
at::Tensor alibi_slopes(std::int64_t heads, const at::Device& device);

// Returns true for "alibi". Throws UsageError for an unknown type.
bool is_alibi(const std::string& bias_type);

// Returns core_attention_bias as a term of scaled scores, or nullopt for type no_bias. Throws
// UsageError if a bias is missing or not allowed.
std::optional<at::Tensor> given_bias(const ScoreArguments& arguments, double scale);

// The bias of scaled scores as a rule: computed for one block at a time or as a whole.
class BiasRule {
 public:
  BiasRule() = default;  // no bias

  // sizes: include the heads. scale: the factor of Q K^T. Throws like given_bias, and ShapeError if
  // the bias does not broadcast to the scores.
  BiasRule(const ScoreArguments& arguments, const AttentionSizes& sizes, double scale,
           const at::Device& device);

  explicit operator bool() const { return source_.defined(); }

  // The tensor that may require a gradient: core_attention_bias, or the slopes as [1 or batch,
  // heads, 1, 1].
  const at::Tensor& source() const { return source_; }
  void set_source(const at::Tensor& source) { source_ = source; }

  // Returns the bias of a block, broadcastable to [samples, heads, queries, keys], or undefined if
  // there is none.
  at::Tensor part(const ScoreBlock& block, const MaskRule& mask) const;
  std::optional<at::Tensor> whole(const ScoreShape& shape, const MaskRule& mask) const;
  // The size of the whole bias.
  std::vector<std::int64_t> sizes(const MaskRule& mask) const;

  // Adds a block's part of the gradient of source() to `into`. of_scores: gradient of the biased
  // scores, [samples, heads, queries, keys].
  void add_gradient(const at::Tensor& into, const at::Tensor& of_scores, const ScoreBlock& block,
                    const MaskRule& mask) const;

 private:
  at::Tensor source_ = {};
  bool is_alibi_ = false;
  double factor_ = 1;
};

}  // namespace telens
