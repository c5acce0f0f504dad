#include "core/modules/attention/ring_attention.h"

#include <ATen/TensorOperators.h>
#include <ATen/autocast_mode.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>
#include <torch/csrc/autograd/custom_function.h>

#include <limits>
#include <utility>
#include <vector>

#include "core/distributed/collectives.h"
#include "core/modules/attention/context_mask.h"
#include "core/modules/attention/partial_attention.h"
#include "core/modules/shared/activation_dtype.h"
#include "core/modules/shared/second_derivative.h"

namespace telens {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// Keys and values, or their gradients, as the one tensor that travels.
class Travelers {
 public:
  Travelers(const at::Tensor& key, const at::Tensor& value)
      : key_sizes_(key.sizes().vec()), value_sizes_(value.sizes().vec()) {}

  static at::Tensor pack(const at::Tensor& key, const at::Tensor& value) {
    return at::cat({key.flatten(), value.flatten()});
  }
  at::Tensor key(const at::Tensor& packed) const {
    return packed.narrow(0, 0, key_numel()).view(key_sizes_);
  }
  at::Tensor value(const at::Tensor& packed) const {
    return packed.narrow(0, key_numel(), packed.numel() - key_numel()).view(value_sizes_);
  }

 private:
  std::int64_t key_numel() const { return c10::multiply_integers(key_sizes_); }

  std::vector<std::int64_t> key_sizes_;
  std::vector<std::int64_t> value_sizes_;
};

// A range of places of this rank's two chunks.
struct Part {
  std::int64_t first;
  std::int64_t count;

  at::Tensor of(const at::Tensor& x, std::int64_t dim = 2) const {
    return x.narrow(dim, first, count);
  }
};

// One step: some queries look at some keys of the rank that owns them.
struct Step {
  Part query;
  Part key;
  std::optional<at::Tensor> allowed;
};

// The steps of one rank, in the forward and in the backward.
class Ring {
 public:
  Ring(const RingAttention& how, std::int64_t queries, std::int64_t keys)
      : how_(how),
        queries_(queries),
        keys_(keys),
        at_{.rank = rank_in(*how.group), .size = size_of(*how.group)} {}

  std::int64_t steps() const { return at_.size; }

  PendingTensor pass(const at::Tensor& x, RingChannel channel) const {
    return pass_to_next_rank(x, how_.group, channel);
  }

  // Under a causal mask the keys of a lower rank's second chunk lie behind all queries, and of the
  // queries only the second chunk lies behind a higher rank's keys. What is left is seen whole.
  Step step(std::int64_t index) const {
    const std::int64_t owner = (at_.rank - index + at_.size) % at_.size;
    Step step{.query = {0, queries_}, .key = {0, keys_}, .allowed = {}};
    if (how_.causal && owner < at_.rank) step.key.count = keys_ / 2;
    if (how_.causal && owner > at_.rank) step.query = {queries_ / 2, queries_ / 2};
    const bool diagonal = how_.causal && owner == at_.rank;
    if (diagonal || how_.query.has_gaps || how_.key.has_gaps) {
      step.allowed =
          allowed_keys(step.query.of(how_.query.of(at_), 1),
                       step.key.of(how_.key.of({owner, at_.size}), 1), {.causal = diagonal});
    }
    return step;
  }

 private:
  const RingAttention& how_;
  std::int64_t queries_;
  std::int64_t keys_;
  ContextRank at_;
};

// present: the keys and values that are at this rank.
PartialHeads heads_of(const Step& step, const at::Tensor& queries, const Travelers& travelers,
                      const at::Tensor& present) {
  return {step.query.of(queries), step.key.of(to_accumulation_dtype(travelers.key(present))),
          step.key.of(to_accumulation_dtype(travelers.value(present)))};
}

struct KeptRing final : torch::CustomClassHolder {
  explicit KeptRing(RingAttention kept) : how(std::move(kept)) {}
  RingAttention how;
  std::vector<at::Tensor> kept;  // dropout's choices of each step, without dropout none
};

std::optional<at::Tensor> draw(const RingAttention& how, const at::Tensor& query,
                               const at::Tensor& key) {
  if (how.dropout == 0) return std::nullopt;
  return at::empty({query.size(0), query.size(1), query.size(2), key.size(2)},
                   query.options().dtype(at::kBool))
      .bernoulli_(1 - how.dropout);
}

class RingAttentionFunction : public torch::autograd::Function<RingAttentionFunction> {
 public:
  static at::Tensor forward(AutogradContext* context, const at::Tensor& query,
                            const at::Tensor& key, const at::Tensor& value,
                            const RingAttention* how) {
    const at::AutoDispatchBelowADInplaceOrView below_autograd;
    const c10::impl::ExcludeDispatchKeyGuard no_autocast(c10::autocast_dispatch_keyset);
    auto kept = c10::make_intrusive<KeptRing>(*how);
    const Ring ring(*how, query.size(2), key.size(2));
    const Travelers travelers(key, value);
    const at::Tensor queries = to_accumulation_dtype(query);
    const auto options = queries.options();
    const PartialAttention sum{
        at::zeros({query.size(0), query.size(1), query.size(2), value.size(3)}, options),
        at::full({query.size(0), query.size(1), query.size(2), 1},
                 -std::numeric_limits<double>::infinity(), options)};
    at::Tensor present = Travelers::pack(key, value);
    for (std::int64_t i = 0; i < ring.steps(); ++i) {
      PendingTensor next;
      if (i + 1 < ring.steps()) next = ring.pass(present, RingChannel::values);
      const Step step = ring.step(i);
      const PartialHeads heads = heads_of(step, queries, travelers, present);
      const PartialScores scores{.allowed = step.allowed,
                                 .kept = draw(*how, heads.query, heads.key),
                                 .keep = 1 - how->dropout,
                                 .scale = how->scale};
      if (scores.kept) kept->kept.push_back(*scores.kept);
      add_partial({step.query.of(sum.output), step.query.of(sum.lse)},
                  attend_partly(heads, scores));
      if (next.defined()) present = next.wait();
    }
    at::Tensor output = sum.output.to(query.scalar_type());
    context->save_for_backward({query, key, value, output, sum.lse});
    context->saved_data["ring"] = c10::IValue::make_capsule(std::move(kept));
    return output;
  }

  static variable_list backward(AutogradContext* context, variable_list grads) {
    refuse_second_derivative("DotProductAttention");
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
    const at::Tensor query_gradient = at::zeros_like(queries);
    at::Tensor present = Travelers::pack(key, value);
    at::Tensor gradients = at::zeros(present.sizes(), queries.options());
    PendingTensor arriving(gradients);
    for (std::int64_t i = 0; i < ring.steps(); ++i) {
      PendingTensor next;
      if (i + 1 < ring.steps()) next = ring.pass(present, RingChannel::values);
      const Step step = ring.step(i);
      const PartialHeads heads = heads_of(step, queries, travelers, present);
      // Computed beside the transfer of what the ranks before have added up.
      const at::Tensor own = at::zeros(present.sizes(), queries.options());
      const auto drawn = static_cast<std::size_t>(i);
      add_partial_gradients(
          heads,
          {.allowed = step.allowed,
           .kept = ring_kept.kept.empty() ? std::nullopt : std::optional(ring_kept.kept[drawn]),
           .keep = 1 - how.dropout,
           .scale = how.scale},
          {step.query.of(output_gradient), step.query.of(delta), step.query.of(saved[4])},
          {step.query.of(query_gradient), step.key.of(travelers.key(own)),
           step.key.of(travelers.value(own))});
      gradients = arriving.wait() + own;
      arriving = ring.pass(gradients, RingChannel::gradients);
      if (next.defined()) present = next.wait();
    }
    gradients = arriving.wait();
    return {query_gradient.to(query.scalar_type()), travelers.key(gradients).to(key.scalar_type()),
            travelers.value(gradients).to(value.scalar_type()), at::Tensor()};
  }
};

}  // namespace

at::Tensor attend_in_ring(const QueryKeyValueHeads& heads, const RingAttention& how) {
  return RingAttentionFunction::apply(heads.query, heads.key, heads.value, &how);
}

}  // namespace telens
