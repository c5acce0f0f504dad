#include "core/modules/attention/ring_attention.h"

#include <ATen/TensorOperators.h>
#include <ATen/autocast_mode.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/exp.h>
#include <ATen/ops/full.h>
#include <ATen/ops/logaddexp.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>
#include <torch/csrc/autograd/custom_function.h>

#include <utility>
#include <vector>

#include "core/modules/attention/context_parallel.h"
#include "core/modules/attention/fp8_attention.h"
#include "core/modules/attention/score_block.h"
#include "core/modules/shared/activation_dtype.h"
#include "core/modules/shared/autograd_utils.h"
#include "core/ops/tensor_utils.h"

namespace telens {
namespace {

using ops::if_defined;
using ops::or_undefined;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// present: the keys and values at this rank.
PartialHeads get_heads(const RingStep& step, const at::Tensor& queries, const Travelers& travelers,
                       const at::Tensor& present) {
  return {step.query.of(queries), step.key.of(to_accumulation_dtype(travelers.key(present))),
          step.key.of(to_accumulation_dtype(travelers.value(present)))};
}

// The forward operands of a step.
PartialHeads cast_forward(const RingAttention& how, const PartialHeads& heads) {
  if (!how.qkv) return heads;
  const CodedHeads coded =
      make_forward_operands({heads.query, heads.key, heads.value, {}}, *how.qkv);
  return {coded.query.over_size, coded.key.over_size, coded.value.over_positions};
}

// The backward operands of a step.
void cast_backward(const RingAttention& how, PartialHeads& heads, AttentionGradients& gradients) {
  if (!how.qkv) return;
  const CodedHeads coded =
      make_backward_operands({heads.query, heads.key, heads.value, {}}, *how.qkv);
  const CodedRows output = cast_output_gradient(gradients.output, how.d_o).rows;
  heads = {coded.query.over_size, coded.key.over_size, coded.value.over_size};
  gradients.output = output.over_size;
  gradients.over_positions =
      OverPositions{coded.query.over_positions, coded.key.over_positions, output.over_positions};
}

struct KeptRing final : torch::CustomClassHolder {
  explicit KeptRing(RingAttention kept) : how(std::move(kept)) {}
  RingAttention how;
  std::vector<at::Tensor> kept;  // dropout's choices per step; empty without dropout
};

class RingAttentionFunction : public torch::autograd::Function<RingAttentionFunction> {
 public:
  static at::Tensor forward(AutogradContext* context, const at::Tensor& query,
                            const at::Tensor& key, const at::Tensor& value,
                            const std::optional<at::Tensor>& bias, const RingAttention* how) {
    const at::AutoDispatchBelowADInplaceOrView below_autograd;
    const c10::impl::ExcludeDispatchKeyGuard no_autocast(c10::autocast_dispatch_keyset);
    auto kept = c10::make_intrusive<KeptRing>(*how);
    kept->how.bias.reset();  // autograd keeps it
    const Ring ring(*how, query.size(2), key.size(2));
    const Travelers travelers(key, value);
    const at::Tensor queries = to_accumulation_dtype(query);
    const std::optional<at::Tensor> ordered = ring.rank_by_rank(bias, queries.scalar_type());
    const PartialAttention sum = nothing_seen(queries, value);
    ring.for_steps(Travelers::pack(key, value), [&](std::size_t, const RingStep& step,
                                                    const at::Tensor& present) {
      const PartialHeads heads = cast_forward(*how, get_heads(step, queries, travelers, present));
      const PartialScores scores{.allowed = step.allowed,
                                 .kept = ring.draw_kept(heads.query, heads.key),
                                 .keep = 1 - how->dropout,
                                 .scale = how->scale,
                                 .bias = step.of_bias(ordered)};
      if (scores.kept) kept->kept.push_back(*scores.kept);
      add_partial({step.query.of(sum.output), step.query.of(sum.lse)},
                  attend_partly(heads, scores));
    });
    at::Tensor output = sum.output.to(query.scalar_type());
    context->save_for_backward({query, key, value, output, sum.lse, or_undefined(bias)});
    context->saved_data["ring"] = c10::IValue::make_capsule(std::move(kept));
    return output;
  }

  static variable_list backward(AutogradContext* context, variable_list grads) {
    check_no_second_derivative("DotProductAttention");
    const at::AutoDispatchBelowADInplaceOrView below_autograd;
    const c10::impl::ExcludeDispatchKeyGuard no_autocast(c10::autocast_dispatch_keyset);
    const auto holder = context->saved_data["ring"].toCapsule();
    const auto& ring_kept = static_cast<const KeptRing&>(*holder);
    const RingAttention& how = ring_kept.how;
    const auto saved = context->get_saved_variables();
    const at::Tensor &query = saved[0], &key = saved[1], &value = saved[2];
    const Ring ring(how, query.size(2), key.size(2));
    const Travelers travelers(key, value);
    const at::Tensor queries = to_accumulation_dtype(query);
    const at::Tensor output_gradient = to_accumulation_dtype(grads[0]);
    const at::Tensor delta =
        (output_gradient * to_accumulation_dtype(saved[3])).sum(-1, /*keepdim=*/true);
    const std::optional<at::Tensor> bias =
        ring.rank_by_rank(if_defined(saved[5]), queries.scalar_type());
    const std::optional<at::Tensor> bias_gradient =
        bias && saved[5].requires_grad() ? std::optional(at::zeros_like(*bias)) : std::nullopt;
    const at::Tensor query_gradient = at::zeros_like(queries);
    at::Tensor gradients = at::zeros({key.numel() + value.numel()}, queries.options());
    PendingTensor arriving(gradients);
    ring.for_steps(Travelers::pack(key, value), [&](std::size_t i, const RingStep& step,
                                                    const at::Tensor& present) {
      PartialHeads heads = get_heads(step, queries, travelers, present);
      AttentionGradients of{step.query.of(output_gradient), step.query.of(delta),
                            step.query.of(saved[4])};
      cast_backward(how, heads, of);
      // Runs during the transfer of the previous ranks' sum.
      const at::Tensor own = at::zeros(present.sizes(), queries.options());
      add_partial_gradients(
          heads,
          {.allowed = step.allowed,
           .kept = ring_kept.kept.empty() ? std::nullopt : std::optional(ring_kept.kept[i]),
           .keep = 1 - how.dropout,
           .scale = how.scale,
           .bias = step.of_bias(bias)},
          of,
          {.heads = {step.query.of(query_gradient), step.key.of(travelers.key(own)),
                     step.key.of(travelers.value(own))},
           .bias = step.of_bias(bias_gradient)});
      gradients = arriving.wait() + own;
      arriving = ring.pass(gradients, RingChannel::gradients);
    });
    gradients = arriving.wait();
    return {query_gradient.to(query.scalar_type()), travelers.key(gradients).to(key.scalar_type()),
            travelers.value(gradients).to(value.scalar_type()),
            bias_gradient ? ring.in_natural_order(*bias_gradient).to(saved[5].scalar_type())
                          : at::Tensor(),
            at::Tensor()};
  }
};

}  // namespace

at::Tensor attend_in_ring(const QueryKeyValueHeads& heads, const RingAttention& how) {
  return RingAttentionFunction::apply(heads.query, heads.key, heads.value, how.bias, &how);
}

at::Tensor Travelers::pack(const at::Tensor& key, const at::Tensor& value) {
  return at::cat({key.flatten(), value.flatten()});
}

at::Tensor Travelers::key(const at::Tensor& packed) const {
  return packed.narrow(0, 0, key_numel()).view(key_sizes_);
}

at::Tensor Travelers::value(const at::Tensor& packed) const {
  return packed.narrow(0, key_numel(), packed.numel() - key_numel()).view(value_sizes_);
}

std::optional<at::Tensor> RingStep::of_bias(const std::optional<at::Tensor>& bias) const {
  if (!bias) return std::nullopt;
  const at::Tensor columns = of_all_keys.of(*bias, 3);
  return columns.size(2) == 1 ? columns : query.of(columns);
}

Ring::Ring(const RingAttention& how, std::int64_t queries, std::int64_t keys)
    : how_(how),
      queries_(queries),
      keys_(keys),
      at_{.rank = rank_in(*how.group), .size = size_of(*how.group)} {}

std::optional<at::Tensor> Ring::rank_by_rank(const std::optional<at::Tensor>& bias,
                                             at::ScalarType dtype) const {
  if (!bias) return std::nullopt;
  return to_rank_order(bias->to(dtype), 3, at_.size);
}

at::Tensor Ring::in_natural_order(const at::Tensor& bias) const {
  return to_natural_order(bias, 3, at_.size);
}

// Under a causal mask a lower rank's second key chunk is masked for all queries, and only the
// second query chunk sees a higher rank's keys. All other blocks are unmasked.
RingStep Ring::step(std::int64_t index) const {
  const std::int64_t owner = (at_.rank - index + at_.size) % at_.size;
  RingStep step{.query = {0, queries_},
                .key = {0, keys_},
                .of_all_keys = {owner * keys_, keys_},
                .allowed = {}};
  if (how_.causal && owner < at_.rank) step.key.count = keys_ / 2;
  if (how_.causal && owner > at_.rank) step.query = {queries_ / 2, queries_ / 2};
  step.of_all_keys.count = step.key.count;
  const bool diagonal = how_.causal && owner == at_.rank;
  if (diagonal || how_.query.has_gaps || how_.key.has_gaps) {
    step.allowed =
        allowed_keys(step.query.of(how_.query.of(at_), 1),
                     step.key.of(how_.key.of({owner, at_.size}), 1), {.causal = diagonal});
  }
  return step;
}

std::optional<at::Tensor> Ring::draw_kept(const at::Tensor& query, const at::Tensor& key) const {
  if (how_.dropout == 0) return std::nullopt;
  return at::empty({query.size(0), query.size(1), query.size(2), key.size(2)},
                   query.options().dtype(at::kBool))
      .bernoulli_(1 - how_.dropout);
}

// ---- partial attention

namespace {

// A mask that is equal for all queries is unchanged.
at::Tensor get_rows(const at::Tensor& mask, const QueryRows& rows) {
  return mask.size(2) == 1 ? mask : rows.of(mask);
}

}  // namespace

at::Tensor partial_scores(const PartialHeads& heads, const PartialScores& how,
                          const QueryRows& rows) {
  at::Tensor scores = compute_products(rows.of(heads.query), heads.key);
  if (how.factor) {
    scores.mul_(*how.factor);
  } else {
    scores.mul_(how.scale);
  }
  if (how.bias) scores.add_(get_rows(*how.bias, rows));
  if (how.allowed) scores.masked_fill_(get_rows(*how.allowed, rows).logical_not(), kUnseen);
  return scores;
}

at::Tensor exponentiate(const at::Tensor& scores, const at::Tensor& lse) {
  const at::Tensor shift = seen_or(scores.amax(-1, /*keepdim=*/true), 0);
  scores.sub_(shift).exp_();
  at::Tensor sum = scores.sum(-1, /*keepdim=*/true);
  lse.copy_(sum.log().add_(shift));
  return sum.masked_fill_(sum == 0, 1);
}

void drop_partly(at::Tensor& weights, const PartialScores& how, const QueryRows& rows) {
  if (!how.kept) return;
  weights.mul_(get_rows(*how.kept, rows));
  if (how.keep > 0) weights.div_(how.keep);  // all dropped if 0
}

PartialAttention nothing_seen(const at::Tensor& query, const at::Tensor& value) {
  std::vector<std::int64_t> sizes = query.sizes().vec();
  sizes[3] = value.size(3);
  const at::Tensor output = at::zeros(sizes, query.options());
  sizes[3] = 1;
  return {output, at::full(sizes, kUnseen, query.options())};
}

PartialAttention attend_partly(const PartialHeads& heads, const PartialScores& how) {
  PartialAttention result = nothing_seen(heads.query, heads.value);
  if (heads.key.size(2) == 0) return result;
  for_query_rows(heads.query.size(2), [&](const QueryRows& rows) {
    at::Tensor weights = partial_scores(heads, how, rows);
    const at::Tensor sum = exponentiate(weights, rows.of(result.lse));
    drop_partly(weights, how, rows);
    rows.of(result.output).copy_(sum_over_keys(weights, heads.value).div_(sum));
  });
  return result;
}

void add_partial(const PartialAttention& sum, const PartialAttention& more) {
  const at::Tensor lse = at::logaddexp(sum.lse, more.lse);
  const at::Tensor shift = seen_or(lse, 0);  // exp(-Inf - 0) is 0
  sum.output.mul_((sum.lse - shift).exp_()).add_(more.output * (more.lse - shift).exp_());
  sum.lse.copy_(lse);
}

void add_partial_gradients(const PartialHeads& heads, const PartialScores& how,
                           const AttentionGradients& gradients, const PartialGradients& into) {
  if (heads.key.size(2) == 0) return;
  const std::int64_t groups = heads.key.size(1);
  const OverPositions over =
      gradients.over_positions.value_or(OverPositions{heads.query, heads.key, gradients.output});
  // Fully masked queries have weights 0.
  const at::Tensor lse = seen_or(gradients.lse, -kUnseen);
  for_query_rows(heads.query.size(2), [&](const QueryRows& rows) {
    const at::Tensor weights = partial_scores(heads, how, rows).sub_(rows.of(lse)).exp_();
    at::Tensor dropped = how.kept ? weights.clone() : weights;
    drop_partly(dropped, how, rows);
    into.heads.value.add_(sum_over_queries(dropped, rows.of(over.output), groups));
    at::Tensor of_weights = compute_products(rows.of(gradients.output), heads.value);
    drop_partly(of_weights, how, rows);
    const at::Tensor of_scores = of_weights.sub_(rows.of(gradients.delta)).mul_(weights);
    if (into.bias) {
      const at::Tensor own = get_rows(*into.bias, rows);
      own.add_(of_scores.sum_to_size(own.sizes()));
    }
    of_scores.mul_(how.scale);
    rows.of(into.heads.query).add_(sum_over_keys(of_scores, over.key));
    into.heads.key.add_(sum_over_queries(of_scores, rows.of(over.query), groups));
  });
}

}  // namespace telens
