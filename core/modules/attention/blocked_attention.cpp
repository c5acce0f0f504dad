// Attention in blocks: forward and backward with LibTorch's GEMMs and the formulas of flash
// attention (https://arxiv.org/abs/2307.08691). The backward recomputes the scores from the
// log-sum-exp of the softmax.
#include "core/modules/attention/blocked_attention.h"

#include <ATen/ExpandUtils.h>
#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/maximum.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>
#include <fmt/format.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/custom_function.h>

#include <memory>
#include <utility>

#include "core/modules/attention/attention_kernels.h"
#include "core/modules/attention/score_block.h"
#include "core/modules/shared/activation_dtype.h"
#include "core/modules/shared/autograd_utils.h"
#include "core/modules/shared/recomputation.h"
#include "core/ops/device.h"
#include "core/ops/tensor_utils.h"

namespace telens {
namespace {

using ops::if_defined;
using ops::or_undefined;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

constexpr const char* kName = "DotProductAttention";
constexpr const char* kKept = "blocked_attention";

// The non-tensor state of a backward; autograd keeps learned tensors.
struct KeptAttention final : torch::CustomClassHolder {
  AttentionRules rules;
  ScoreDropout dropout;
};

// The order of the tensors in save_for_backward.
enum Saved : std::uint8_t {
  kSavedQuery,
  kSavedKey,
  kSavedValue,
  kSavedBias,
  kSavedOffset,
  kSavedOutput,
  kSavedLogSum
};

// Computes scores of queries and keys in the accumulation dtype.
class Attention {
 public:
  Attention(const QueryKeyValueHeads& heads, const AttentionRules& rules,
            const ScoreDropout& dropout)
      : query_(to_accumulation_dtype(heads.query)),
        key_(to_accumulation_dtype(heads.key)),
        value_(to_accumulation_dtype(heads.value)),
        rules_(rules),
        dropout_(dropout),
        ruled_(rules),
        sink_(get_sink_score(rules, query_.options())) {}

  at::TensorOptions options() const { return query_.options(); }
  bool changes() const { return static_cast<bool>(rules_.change); }
  ScoreShape shape() const { return score_shape(query_, key_); }

  template <typename Call>
  void for_blocks(const Call& call) {
    for_score_blocks(make_blocked_scores(query_, key_, rules_), call);
  }

  at::Tensor scaled_query(const ScoreBlock& block) const {
    return block.of_queries(query_) * rules_.scale;
  }
  at::Tensor key(const ScoreBlock& block) const { return block.of_keys(key_); }
  at::Tensor value(const ScoreBlock& block) const { return block.of_keys(value_); }
  // [1, heads or 1, 1, 1]; undefined if there is none
  at::Tensor sink(const ScoreBlock& block) const {
    return sink_.defined() ? block.of_scores(sink_) : sink_;
  }

  // [samples, heads, queries, keys], before rules are applied.
  at::Tensor plain_scores(const ScoreBlock& block) const {
    return compute_products(scaled_query(block), key(block));
  }
  at::Tensor ruled(const at::Tensor& scores, const ScoreBlock& block) {
    return ruled_(scores, block);
  }
  void drop(const at::Tensor& weights, const ScoreBlock& block) const {
    dropout_.apply(weights, block);
  }

 private:
  at::Tensor query_;
  at::Tensor key_;
  at::Tensor value_;
  const AttentionRules& rules_;
  const ScoreDropout& dropout_;
  RuledScores ruled_;
  at::Tensor sink_;
};

// Writes the block's part of the output and of the log-sum-exp, which is -Inf for fully masked
// queries.
void attend_to(Attention& attention, const ScoreBlock& block, const at::Tensor& output,
               const at::Tensor& log_sum) {
  at::Tensor weights = attention.ruled(attention.plain_scores(block), block);
  at::Tensor largest = weights.amax(-1, /*keepdim=*/true);
  const at::Tensor blind = largest == kUnseen;
  const at::Tensor sink = attention.sink(block);
  if (sink.defined()) largest = at::maximum(largest, sink);
  const at::Tensor shift = seen_or(largest, 0);
  // A user function may return a tensor that the user keeps.
  weights = (attention.changes() ? weights.sub(shift) : weights.sub_(shift)).exp_();
  at::Tensor sum = weights.sum(-1, /*keepdim=*/true);
  if (sink.defined()) sum.add_((sink - shift).exp_());
  block.of_queries(log_sum).copy_(sum.log().add_(shift).masked_fill_(blind, kUnseen));
  attention.drop(weights, block);
  block.of_queries(output).copy_(
      sum_over_keys(weights, attention.value(block)).div_(sum).masked_fill_(blind, 0));
}

// The gradients of an attention, block by block.
class Gradients {
 public:
  // output_gradient, output: [batch, heads, seq_q, value size], log_sum: [batch, heads, seq_q, 1]
  Gradients(const KeptAttention& kept, const variable_list& saved, const at::Tensor& gradient);

  void compute();

  variable_list all() const { return {query_, key_, value_, bias_, offset_}; }

 private:
  at::Tensor compute_weights(const ScoreBlock& block, at::Tensor& plain, at::Tensor& changed);
  void add(const ScoreBlock& block);
  at::Tensor before_change(const at::Tensor& of_scores, const at::Tensor& plain,
                           const at::Tensor& changed, const ScoreBlock& block) const;

  AttentionRules rules_;
  Attention attention_;
  at::Tensor output_gradient_;
  at::Tensor delta_;    // [batch, heads, seq_q, 1]: sum of the output times its gradient
  at::Tensor log_sum_;  // infinity for fully masked queries
  at::Tensor query_, key_, value_, bias_, offset_;
};

Gradients::Gradients(const KeptAttention& kept, const variable_list& saved,
                     const at::Tensor& gradient)
    : rules_(with_learned(kept.rules, saved[kSavedBias], saved[kSavedOffset])),
      attention_({saved[kSavedQuery], saved[kSavedKey], saved[kSavedValue]}, rules_, kept.dropout),
      output_gradient_(
          gradient.to(attention_.options()).masked_fill(saved[kSavedLogSum] == kUnseen, 0)),
      delta_((output_gradient_ * saved[kSavedOutput]).sum(-1, /*keepdim=*/true)),
      log_sum_(seen_or(saved[kSavedLogSum], -kUnseen)) {
  const auto zeros = [&](const at::Tensor& like) {
    return at::zeros(like.sizes(), attention_.options());
  };
  query_ = zeros(saved[kSavedQuery]);
  key_ = zeros(saved[kSavedKey]);
  value_ = zeros(saved[kSavedValue]);
  if (saved[kSavedBias].defined() && saved[kSavedBias].requires_grad())
    bias_ = zeros(saved[kSavedBias]);
  if (saved[kSavedOffset].defined()) offset_ = zeros(saved[kSavedOffset]);
}

// If a function changes the scores, autograd records the step from `plain` to `changed`.
at::Tensor Gradients::compute_weights(const ScoreBlock& block, at::Tensor& plain,
                                      at::Tensor& changed) {
  at::Tensor scores = attention_.plain_scores(block);
  if (!rules_.change) {
    scores = attention_.ruled(scores, block);
    return scores.sub_(block.of_queries(log_sum_)).exp_();
  }
  const at::AutoGradMode follows(!rules_.change.gradient);
  plain = scores.detach().requires_grad_(at::GradMode::is_enabled());
  changed = attention_.ruled(plain, block);
  return changed.detach().sub(block.of_queries(log_sum_)).exp_();
}

at::Tensor Gradients::before_change(const at::Tensor& of_scores, const at::Tensor& plain,
                                    const at::Tensor& changed, const ScoreBlock& block) const {
  if (!rules_.change) return of_scores;
  if (rules_.change.gradient) return rules_.change.gradient(of_scores, block);
  if (!changed.requires_grad()) return at::zeros_like(of_scores);
  return torch::autograd::grad({changed}, {plain}, {of_scores.expand_as(changed)})[0];
}

void Gradients::add(const ScoreBlock& block) {
  at::Tensor plain, changed;
  const at::Tensor weights = compute_weights(block, plain, changed);
  const at::Tensor of_output = block.of_queries(output_gradient_);
  at::Tensor dropped = weights;
  at::Tensor of_weights = compute_products(of_output, attention_.value(block));
  if (rules_.dropout != 0) {
    dropped = weights.clone(at::MemoryFormat::Contiguous);
    attention_.drop(dropped, block);
    attention_.drop(of_weights, block);
  }
  block.of_keys(value_).add_(sum_over_queries(dropped, of_output, block.groups));
  const at::Tensor delta = block.of_queries(delta_);
  if (offset_.defined()) {
    const at::Tensor own = block.of_scores(offset_);
    const at::Tensor share = (attention_.sink(block) - block.of_queries(log_sum_)).exp_();
    own.sub_(share.mul_(delta).sum_to_size(own.sizes()));
  }
  const at::Tensor of_scores =
      before_change(of_weights.sub_(delta).mul_(weights), plain, changed, block);
  if (bias_.defined()) rules_.bias.add_gradient(bias_, of_scores, block, rules_.mask);
  block.of_queries(query_).copy_(
      sum_over_keys(of_scores, attention_.key(block)).mul_(rules_.scale));
  block.of_keys(key_).add_(
      sum_over_queries(of_scores, attention_.scaled_query(block), block.groups));
}

void Gradients::compute() {
  attention_.for_blocks([&](const ScoreBlock& block) { add(block); });
}

class BlockedAttention : public torch::autograd::Function<BlockedAttention> {
 public:
  static at::Tensor forward(AutogradContext* context, const at::Tensor& query,
                            const at::Tensor& key, const at::Tensor& value,
                            const std::optional<at::Tensor>& bias,
                            const std::optional<at::Tensor>& offset, const AttentionRules* rules) {
    const at::AutoDispatchBelowADInplaceOrView below_autograd;
    auto kept = c10::make_intrusive<KeptAttention>();
    kept->dropout = ScoreDropout::seeded(rules->dropout);
    Attention attention({query, key, value}, *rules, kept->dropout);
    const ScoreShape shape = attention.shape();
    const at::Tensor output =
        at::zeros({shape.batch, shape.heads, shape.queries, value.size(3)}, attention.options());
    const at::Tensor log_sum =
        at::zeros({shape.batch, shape.heads, shape.queries, 1}, attention.options());
    attention.for_blocks(
        [&](const ScoreBlock& block) { attend_to(attention, block, output, log_sum); });
    kept->rules = without_learned(*rules);
    context->save_for_backward(
        {query, key, value, or_undefined(bias), or_undefined(offset), output, log_sum});
    context->saved_data[kKept] = c10::IValue::make_capsule(std::move(kept));
    return output.to(query.scalar_type());
  }

  static variable_list backward(AutogradContext* context, variable_list gradients) {
    return translating_errors([&] {
      return naming_layer(kName, [&] {
        check_no_second_derivative(kName);
        const auto holder = context->saved_data[kKept].toCapsule();
        const auto& kept = static_cast<const KeptAttention&>(*holder);
        kept.rules.mask.check_unchanged();
        const c10::impl::ExcludeDispatchKeyGuard no_autocast(c10::autocast_dispatch_keyset);
        const variable_list saved = context->get_saved_variables();
        Gradients made(kept, saved, gradients[0]);
        made.compute();
        variable_list all = made.all();
        for (std::size_t i = 0; i < all.size(); ++i) {
          if (all[i].defined()) all[i] = all[i].to(saved[i].scalar_type());
        }
        all.resize(all.size() + 1);  // the rules
        return all;
      });
    });
  }
};

// Returns [batch, heads, seq_q, value size]; 0 for fully masked queries. BF16 and FP16 are computed
// in FP32 and rounded once. Differentiable once in query, key, value, the bias's source and offset;
// saves those, the output and one number per query. Dropout draws one number from the CPU's default
// generator. The backward throws UsageError for a mask that was modified since the forward.
at::Tensor attend_in_blocks(const QueryKeyValueHeads& heads, const AttentionRules& rules) {
  return BlockedAttention::apply(heads.query, heads.key, heads.value,
                                 if_defined(rules.bias.source()), rules.offset, &rules);
}

// ---- the choice between blocks and LibTorch's kernels

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
