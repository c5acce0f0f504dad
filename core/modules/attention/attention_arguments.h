// The arguments that affect attention scores, under Transformer Engine's names. DotProductAttention
// accepts them, and the modules that contain one pass them through.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/error.h"

namespace telens {

// (left, right): query i attends to keys i - left .. i + right; -1: no limit.
using WindowSize = std::vector<std::int64_t>;

// Maps scaled scores of a block, FP32 (FP64 for FP64) [samples, heads, queries, keys], to scores of
// the same shape. place: sample, head, query and key of the first score, then the size of all
// scores, [batch, heads, seq_q, seq_kv].
using ScoreCallback = std::function<at::Tensor(at::Tensor, std::vector<std::int64_t> place)>;

// Constructor arguments.
struct ScoreOptions {
  std::optional<WindowSize> window_size = {};
  std::optional<bool> bottom_right_diagonal = {};
  std::string softmax_type = "vanilla";

  template <typename Owner, typename Visitor>
  static void describe_in(Visitor&& visit, ScoreOptions Owner::*member) {
    visit.nested("window_size", member, &ScoreOptions::window_size,
                 "(left, right): query i attends to keys i - left to i + right; -1 or None for "
                 "no limit");
    visit.nested("bottom_right_diagonal", member, &ScoreOptions::bottom_right_diagonal,
                 "aligns the diagonal with the last query and key, for windows and ALiBi under "
                 "masks that are not causal; default: True");
    visit.nested("softmax_type", member, &ScoreOptions::softmax_type,
                 "vanilla; off-by-one: adds exp(0) to the sum; learnable: adds "
                 "exp(softmax_offset), a parameter per head");
  }
};

// Forward arguments.
struct ScoreArguments {
  std::optional<WindowSize> window_size = {};
  std::optional<bool> bottom_right_diagonal = {};
  bool checkpoint_core_attention = false;
  std::string core_attention_bias_type = "no_bias";
  std::optional<at::Tensor> core_attention_bias = {};
  std::optional<at::Tensor> alibi_slopes = {};
  std::optional<at::Tensor> cu_seqlens_q = {};
  std::optional<at::Tensor> cu_seqlens_kv = {};
  std::optional<at::Tensor> cu_seqlens_q_padded = {};
  std::optional<at::Tensor> cu_seqlens_kv_padded = {};
  std::optional<std::int64_t> max_seqlen_q = {};
  std::optional<std::int64_t> max_seqlen_kv = {};

  template <typename Owner, typename Visitor>
  static void describe_in(Visitor&& visit, ScoreArguments Owner::*member) {
    using Self = ScoreArguments;
    visit.nested("window_size", member, &Self::window_size, "default: the module's setting");
    visit.nested("bottom_right_diagonal", member, &Self::bottom_right_diagonal,
                 "default: the module's setting");
    visit.nested("checkpoint_core_attention", member, &Self::checkpoint_core_attention,
                 "the backward recomputes the attention; no intermediate result is saved");
    visit.nested("core_attention_bias_type", member, &Self::core_attention_bias_type,
                 "no_bias; pre_scale_bias: (Q K^T + bias) * scale; post_scale_bias: Q K^T * scale "
                 "+ bias; alibi: as the latter, with -slope * distance");
    visit.nested("core_attention_bias", member, &Self::core_attention_bias,
                 "broadcast to [batch, heads, seq_q, seq_kv]");
    visit.nested("alibi_slopes", member, &Self::alibi_slopes,
                 "FP32 [heads] or [batch, heads]; default: ALiBi's slopes");
    visit.nested("cu_seqlens_q", member, &Self::cu_seqlens_q,
                 "int32 [batch + 1], sums of the sequences' lengths: of packed sequences (thd), or "
                 "in place of a padding mask");
    visit.nested("cu_seqlens_kv", member, &Self::cu_seqlens_kv,
                 "likewise for the keys; default: as for the query");
    visit.nested("cu_seqlens_q_padded", member, &Self::cu_seqlens_q_padded,
                 "where sequences begin in thd, if there is padding between them");
    visit.nested("cu_seqlens_kv_padded", member, &Self::cu_seqlens_kv_padded,
                 "likewise for the keys");
    visit.nested("max_seqlen_q", member, &Self::max_seqlen_q,
                 "the longest sequence of thd; None: read from the device");
    visit.nested("max_seqlen_kv", member, &Self::max_seqlen_kv, "likewise for the keys");
  }
};

// ---- qkv_format: the order of the dimensions of query, key and value

// Throws UsageError unless the format is sbhd ([seq, batch, ...]), bshd or thd ([tokens, ...]).
inline void check_qkv_format(std::string_view qkv_format) {
  if (qkv_format != "sbhd" && qkv_format != "bshd" && qkv_format != "thd") {
    raise<UsageError>("qkv_format '{}' is unknown; expected sbhd, bshd or thd", qkv_format);
  }
}

// The batch dimension: 1 for sbhd, 0 for bshd.
inline std::int64_t get_batch_dim(std::string_view qkv_format) {
  check_qkv_format(qkv_format);
  return qkv_format == "sbhd" ? 1 : 0;
}

}  // namespace telens
