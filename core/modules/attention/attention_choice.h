// The kernel that LibTorch chooses for an attention, and the reasons against faster ones.
#pragma once

#include <ATen/core/Tensor.h>

#include <optional>
#include <string_view>
#include <vector>

#include "core/modules/attention/attention_kernels.h"
#include "core/ops/attention_choice.h"

namespace telens {

// Arguments of LibTorch's scaled_dot_product_attention.
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

// The parts of a mask in the user's terms, such as {"the mask", "the bias"}, and those that require
// a gradient.
struct MaskParts {
  std::vector<std::string_view> all = {};
  std::vector<std::string_view> with_gradient = {};
};

// The tensors that make up a mask.
struct MaskSources {
  bool has_mask = false;
  std::optional<at::Tensor> bias = {};
  bool has_sink = false;
  std::optional<at::Tensor> offset = {};  // of a learned sink
};
MaskParts mask_parts(const MaskSources& sources);

// Returns true if LibTorch would choose flash attention.
bool is_flash(const ScaledAttention& attention);

// Throws UsageError if no enabled kernel supports the attention: LibTorch's error does not name the
// variable.
void check_kernel_is_left(const ScaledAttention& attention, const AllowedAttentionKernels& kernels);

// Queries LibTorch's choice without running a kernel. If it is not one of the fastest kernels,
// queries again without the possible obstacles.
ops::AttentionChoice choose_kernel(const ScaledAttention& attention, const MaskParts& parts);

}  // namespace telens
