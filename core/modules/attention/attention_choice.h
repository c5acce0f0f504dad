// The kernel that LibTorch chooses for an attention, and what rules the faster ones out.
#pragma once

#include <ATen/core/Tensor.h>

#include <optional>
#include <string_view>
#include <vector>

#include "core/modules/attention/attention_kernels.h"
#include "core/ops/attention_choice.h"

namespace telens {

// The arguments of LibTorch's scaled_dot_product_attention.
struct ScaledAttention {
  at::Tensor query;                     // [batch, heads, seq_q, size]
  at::Tensor key;                       // [batch, groups, seq_kv, size]
  at::Tensor value;                     // [batch, groups, seq_kv, value size]
  std::optional<at::Tensor> mask = {};  // boolean or additive
  double dropout = 0;
  bool is_causal = false;
  double scale = 1;
  bool grouped = false;
};

// A mask's parts in the user's words, for instance {"the mask", "the bias"}, and those of them that
// want a gradient.
struct MaskParts {
  std::vector<std::string_view> all = {};
  std::vector<std::string_view> with_gradient = {};
};

// The parts of a mask.
struct MaskSources {
  bool has_mask = false;
  std::optional<at::Tensor> bias = {};
  bool has_sink = false;
  std::optional<at::Tensor> offset = {};  // the sink's, where it is learned
};
MaskParts mask_parts(const MaskSources& sources);

// True if LibTorch would take flash attention.
bool is_flash(const ScaledAttention& attention);

// Throws UsageError where kernels are restricted and none is left that takes the attention:
// LibTorch's own error names no variable.
void check_kernel_is_left(const ScaledAttention& attention, const AllowedAttentionKernels& kernels);

// Asks LibTorch and runs nothing. Where the answer is not one of its fastest kernels, it is asked
// again without what may rule them out.
ops::AttentionChoice choose_kernel(const ScaledAttention& attention, const MaskParts& parts);

}  // namespace telens
