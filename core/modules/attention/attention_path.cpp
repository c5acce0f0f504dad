#include "core/modules/attention/attention_path.h"

#include <ATen/ExpandUtils.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <fmt/format.h>

#include <memory>
#include <utility>

#include "core/modules/attention/attention_choice.h"
#include "core/modules/attention/attention_kernels.h"
#include "core/modules/attention/blocked_attention.h"
#include "core/modules/shared/checkpointed_call.h"
#include "core/ops/device_traits.h"
#include "core/ops/optional_tensor.h"

namespace telens {
namespace {

using ops::if_defined;
using ops::or_undefined;

constexpr const char* kBlocks = "attention in blocks";

// A tensor of any size that stores one element.
at::Tensor stand_in(at::IntArrayRef sizes, const at::TensorOptions& options) {
  return at::empty({1}, options).expand(sizes);
}

// A mask with the sizes that LibTorch's kernels would receive, without its elements.
std::optional<at::Tensor> mask_for(const AttentionRules& rules, const ScoreShape& shape,
                                   const at::Tensor& query) {
  const bool added = rules.bias || rules.has_sink;
  if (!added && (!rules.mask.hides() || rules.mask.is_plain_causal())) return std::nullopt;
  std::vector<std::int64_t> sizes{shape.queries, shape.keys};
  if (rules.mask.hides()) sizes = at::infer_size(sizes, rules.mask.sizes());
  if (rules.bias) sizes = at::infer_size(sizes, rules.bias.sizes(rules.mask));
  if (rules.has_sink) {
    if (rules.offset) sizes = at::infer_size(sizes, {1, shape.heads, 1, 1});
    ++sizes.back();
  }
  const bool learned =
      at::GradMode::is_enabled() && ((rules.bias && rules.bias.source().requires_grad()) ||
                                     (rules.offset && rules.offset->requires_grad()));
  return stand_in(sizes, query.options().dtype(added ? mask_dtype(query) : at::kBool))
      .requires_grad_(learned);
}

ScaledAttention without_elements(const QueryKeyValueHeads& heads, const AttentionRules& rules) {
  const ScoreShape shape = score_shape(heads.query, heads.key);
  const auto with_sink = [&](const at::Tensor& rows) {
    if (!rules.has_sink) return rows;
    std::vector<std::int64_t> sizes = rows.sizes().vec();
    ++sizes[2];
    return at::empty({sizes.back()}, rows.options()).expand(sizes);
  };
  const std::optional<at::Tensor> mask = mask_for(rules, shape, heads.query);
  return {.query = heads.query,
          .key = with_sink(heads.key),
          .value = with_sink(heads.value),
          .mask = mask,
          .dropout = rules.dropout,
          .is_causal = !mask && rules.mask.is_plain_causal(),
          .scale = rules.scale,
          .grouped = rules.grouped};
}

void note(const AttentionRules& rules, const QueryKeyValueHeads& heads, const std::string& reason) {
  if (!rules.choice) return;
  *rules.choice = {.kernel = kBlocks,
                   .reason = reason,
                   .computed_in = mask_dtype(heads.query),
                   .widened_by = "blocks of scores are in this dtype"};
}

// Returns [batch, heads, seq_q, value size], on either path.
at::Tensor attend_once(const QueryKeyValueHeads& heads, const AttentionRules& rules) {
  if (runs_in_blocks(heads, rules)) return attend_in_blocks(heads, rules);
  return attend_heads(heads, whole_attention(rules, score_shape(heads.query, heads.key)));
}

}  // namespace

bool runs_in_blocks(const QueryKeyValueHeads& heads, const AttentionRules& rules) {
  if (rules.change) {
    note(rules, heads, "no faster one takes score_mod");
    return true;
  }
  const std::int64_t most = block_limits().most_whole;
  if (!ops::is_on_host(heads.query) || score_shape(heads.query, heads.key).scores() <= most) {
    return false;
  }
  const ScaledAttention attention = without_elements(heads, rules);
  const AllowedAttentionKernels kernels(heads.query);
  check_kernel_is_left(attention, kernels);
  const bool has_flash = is_flash(attention);
  const std::int64_t elements = attention.mask ? attention.mask->numel() : 0;
  if (has_flash && elements <= most) return false;
  if (rules.choice) {
    note(rules, heads,
         has_flash ? fmt::format("flash attention would take a mask of {} elements", elements)
                   : choose_kernel(attention, mask_parts({.has_mask = rules.mask.hides(),
                                                          .bias = if_defined(rules.bias.source()),
                                                          .has_sink = rules.has_sink,
                                                          .offset = rules.offset}))
                         .reason);
  }
  return true;
}

at::Tensor attend_ruled(const QueryKeyValueHeads& heads, const AttentionRules& rules,
                        bool checkpoint) {
  return checkpoint ? attend_as({}, heads, rules) : attend_once(heads, rules);
}

at::Tensor attend_as(const std::function<at::Tensor()>& forward, const QueryKeyValueHeads& heads,
                     const AttentionRules& rules) {
  const auto first = std::make_shared<bool>(static_cast<bool>(forward));
  return checkpointed_call(
      [first, forward, kept = without_learned(rules),
       choice = rules.choice](const std::vector<at::Tensor>& inputs) {
        if (std::exchange(*first, false)) {
          const at::NoGradGuard no_grad;
          return forward();
        }
        AttentionRules again = with_learned(kept, inputs[3], inputs[4]);
        again.choice = choice;
        return attend_once({inputs[0], inputs[1], inputs[2]}, again);
      },
      {heads.query, heads.key, heads.value, rules.bias.source(), or_undefined(rules.offset)},
      rules.dropout != 0);
}

}  // namespace telens
