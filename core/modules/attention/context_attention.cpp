#include "core/modules/attention/context_attention.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/cat.h>
#include <torch/csrc/autograd/custom_function.h>

#include <utility>

#include "core/base/error.h"
#include "core/distributed/collectives.h"
#include "core/modules/attention/fp8_attention.h"
#include "core/modules/attention/ring_attention.h"
#include "core/modules/shared/autograd_utils.h"
#include "core/quantization/chunked_quantizer.h"

namespace telens {
namespace {

// Sends part i of x [ranks, ...] to rank i.
at::Tensor exchange_parts(const at::Tensor& x, const ProcessGroupPtr& group) {
  const std::vector<std::int64_t> one_each(static_cast<std::size_t>(x.size(0)), 1);
  return exchange_rows(x, {.sent = one_each, .received = one_each}, group);
}

// [batch, heads, seq, size] of this rank -> [batch, heads / ranks, ranks * seq, size], the chunks
// in natural order.
at::Tensor heads_to_sequence(const at::Tensor& x, const ProcessGroupPtr& group) {
  const std::int64_t ranks = size_of(*group);
  const at::Tensor parts = x.unflatten(1, {ranks, x.size(1) / ranks}).movedim(1, 0);
  const at::Tensor got = exchange_parts(parts, group);
  return to_natural_order(got.movedim(0, 2).flatten(2, 3), 2, ranks);
}

// The inverse.
at::Tensor sequence_to_heads(const at::Tensor& x, const ProcessGroupPtr& group) {
  const std::int64_t ranks = size_of(*group);
  const at::Tensor by_rank = to_rank_order(x, 2, ranks);
  const at::Tensor parts = by_rank.unflatten(2, {ranks, x.size(2) / ranks}).movedim(2, 0);
  return exchange_parts(parts, group).movedim(0, 1).flatten(1, 2);
}

// Gathers [batch, groups, seq, size] of every rank in natural order.
at::Tensor gather_chunks(const at::Tensor& x, const ProcessGroupPtr& group) {
  const at::Tensor gathered = gather_sequence(x.contiguous().unsqueeze(0), group);
  return to_natural_order(gathered.movedim(0, 2).flatten(2, 3), 2, size_of(*group));
}

void check_heads(const QueryKeyValueHeads& heads, const ProcessGroupPtr& group) {
  const std::int64_t ranks = size_of(*group);
  if (heads.query.size(1) % ranks != 0 || heads.key.size(1) % ranks != 0) {
    raise<UsageError>(
        "DotProductAttention: {} heads in {} groups are not divided by the {} ranks of "
        "cp_comm_type a2a; give multiples of it (num_attention_heads, num_gqa_groups), or use p2p "
        "or all_gather",
        heads.query.size(1), heads.key.size(1), ranks);
  }
}

// Each of this rank's two chunks attends to the keys of every rank; under a causal mask to those up
// to its end.
at::Tensor attend_gathered(const QueryKeyValueHeads& heads, const ContextAttention& how,
                           const LocalAttention& local) {
  const ContextRank at = how.parallel.sequence_place();
  const at::Tensor key = gather_chunks(heads.key, how.parallel.sequence);
  const at::Tensor value = gather_chunks(heads.value, how.parallel.sequence);
  const bool masked = how.span.causal || how.span.left >= 0 || how.span.right >= 0 ||
                      how.query.has_gaps || how.key.has_gaps;
  ScoredAttention scores{.mask = AttentionMask(),
                         .dropout = how.dropout,
                         .scale = how.scale,
                         .grouped = heads.key.size(1) != heads.query.size(1)};
  if (!masked) return local.masked({heads.query, key, value}, scores);
  const at::Tensor positions = how.query.of(at);
  const std::int64_t chunk = heads.query.size(2) / 2;
  std::vector<at::Tensor> outputs;
  for (const bool second : {false, true}) {
    const std::int64_t first = second ? chunk : 0;
    const std::int64_t index = second ? at.second_chunk() : at.first_chunk();
    const std::int64_t keys = how.span.causal ? (index + 1) * chunk : key.size(2);
    scores.mask = make_mask(allowed_keys(positions.narrow(1, first, chunk),
                                         how.key.whole.narrow(1, 0, keys), how.span));
    outputs.push_back(local.masked(
        {heads.query.narrow(2, first, chunk), key.narrow(2, 0, keys), value.narrow(2, 0, keys)},
        scores));
  }
  return at::cat(outputs, 2);
}

at::Tensor attend_sequence(const QueryKeyValueHeads& heads, const ContextAttention& how,
                           const LocalAttention& local) {
  if (how.parallel.gathers) return attend_gathered(heads, how, local);
  RingAttention ring{.group = how.parallel.sequence,
                     .query = how.query,
                     .key = how.key,
                     .causal = how.span.causal,
                     .dropout = how.dropout,
                     .scale = how.scale,
                     .bias = how.bias};
  if (!how.fp8) return attend_in_ring(heads, ring);
  if (!casts_in_blocks(*how.fp8->quantizers.qkv)) {
    return attend_in_fp8_ring(heads, ring, *how.fp8);
  }
  check_dtype_for_fp8(heads.query, *how.fp8);
  ring.qkv = how.fp8->quantizers.qkv;
  ring.d_o = how.fp8->quantizers.d_o;
  return attend_in_ring(heads, ring);
}

}  // namespace

at::Tensor attend_in_context(const QueryKeyValueHeads& heads, const ContextAttention& how,
                             const LocalAttention& local) {
  const ProcessGroupPtr& inner = how.parallel.heads;
  if (!inner) return attend_sequence(heads, how, local);
  check_heads(heads, inner);
  const QueryKeyValueHeads own{heads_to_sequence(heads.query, inner),
                               heads_to_sequence(heads.key, inner),
                               heads_to_sequence(heads.value, inner)};
  const std::int64_t first_head = rank_in(*inner) * own.query.size(1);
  const at::Tensor attended =
      how.parallel.sequence ? attend_sequence(own, how, local) : local.whole(own, first_head);
  return sequence_to_heads(attended, inner);
}

// ---- start and end of an FP8 attention

namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

struct KeptCasts final : torch::CustomClassHolder {
  explicit KeptCasts(Fp8Attention kept) : fp8(std::move(kept)) {}
  Fp8Attention fp8;
};

variable_list ended(const Fp8Attention& fp8, variable_list gradients) {
  const at::AutoDispatchBelowADInplaceOrView below_autograd;
  if (fp8.shares_scales) {
    ChunkedQuantizer cast(fp8.quantizers.d_qkv);
    std::vector<at::ScalarType> dtypes;
    for (const at::Tensor& gradient : gradients) dtypes.push_back(gradient.scalar_type());
    gradients = round_together(cast, gradients, dtypes);
    fp8.scales.input_gradients->publish(cast.scale());
  }
  if (fp8.first_in_region) fp8.region->update(/*backward=*/true);
  return gradients;
}

class EndedGradientsFunction : public torch::autograd::Function<EndedGradientsFunction> {
 public:
  static variable_list forward(AutogradContext* context, const at::Tensor& query,
                               const at::Tensor& key, const at::Tensor& value,
                               const Fp8Attention* fp8) {
    context->saved_data["fp8"] = c10::IValue::make_capsule(c10::make_intrusive<KeptCasts>(*fp8));
    return {query.alias(), key.alias(), value.alias()};
  }

  static variable_list backward(AutogradContext* context, variable_list gradients) {
    const auto holder = context->saved_data["fp8"].toCapsule();
    const Fp8Attention& fp8 = static_cast<const KeptCasts&>(*holder).fp8;
    return translating_errors([&] {
      return naming_layer(fp8.name, [&] {
        variable_list all = ended(fp8, std::move(gradients));
        all.emplace_back();
        return all;
      });
    });
  }
};

class EndedOutputFunction : public torch::autograd::Function<EndedOutputFunction> {
 public:
  static at::Tensor forward(AutogradContext*, const at::Tensor& output, const Fp8Attention* fp8) {
    const at::AutoDispatchBelowADInplaceOrView below_autograd;
    ChunkedQuantizer cast(fp8->quantizers.o);
    at::Tensor values = cast.round(output, output.scalar_type());
    fp8->scales.output->publish(cast.scale());
    return values;
  }

  static variable_list backward(AutogradContext*, variable_list gradients) {
    return {gradients[0], at::Tensor()};
  }
};

}  // namespace

QueryKeyValueHeads with_ended_gradients(const QueryKeyValueHeads& heads, const Fp8Attention& fp8) {
  const variable_list same =
      EndedGradientsFunction::apply(heads.query, heads.key, heads.value, &fp8);
  return {same[0], same[1], same[2]};
}

at::Tensor end_output(const at::Tensor& output, const Fp8Attention& fp8) {
  return fp8.shares_scales || fp8.attaches_output ? EndedOutputFunction::apply(output, &fp8)
                                                  : output;
}

}  // namespace telens
