// Ring attention with per-tensor FP8 scales. Keys and values travel around the ring as codes with
// their scale, which may differ between ranks. Casts follow Transformer Engine, separately in each
// step i; LSE is the log-sum-exp over all keys.
//
//   P = Q8 K8^T * scale           Q, K and V of a rank are cast under one scale
//   S_i = softmax of the step     cast before it meets V
//   O_i = S8_i V8                 cast under delayed scaling, as it is under current scaling
//   O = sum of O_i exp(LSE_i - LSE)
//   dO                            cast
//   D = sum of dO8 O              from O's codes under delayed scaling, which records its
//                                 amax, and if sums_output_codes is set
//   S = exp(P - LSE)              cast with the scale of S_i
//   dP = S (dO8 V8^T - D)         cast
//   dQ_i, dK_i, dV_i              cast under one scale under delayed scaling, and added in FP32
#include <ATen/TensorOperators.h>
#include <ATen/autocast_mode.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>
#include <torch/csrc/autograd/custom_function.h>

#include <utility>
#include <vector>

#include "core/modules/attention/fp8_attention.h"
#include "core/modules/attention/ring_attention.h"
#include "core/modules/attention/score_block.h"
#include "core/modules/shared/autograd_utils.h"
#include "core/ops/quantize.h"
#include "core/quantization/chunked_quantizer.h"

namespace telens {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// The tensor that travels: the inverse scale, then the codes of keys and values.
class CodeTravelers {
 public:
  CodeTravelers(const at::Tensor& key, const at::Tensor& value) : travelers_(key, value) {}

  static at::Tensor pack(const KeptInputs& inputs) {
    return at::cat(
        {inputs.scale_inv.reshape({1}).view(at::kByte), Travelers::pack(inputs.key, inputs.value)});
  }
  static at::Tensor scale_inv(const at::Tensor& packed) {
    return packed.narrow(0, 0, kScaleBytes).view(at::kFloat);
  }
  at::Tensor key(const at::Tensor& packed) const { return travelers_.key(codes(packed)); }
  at::Tensor value(const at::Tensor& packed) const { return travelers_.value(codes(packed)); }

 private:
  static constexpr std::int64_t kScaleBytes = 4;  // FP32, first for alignment
  static at::Tensor codes(const at::Tensor& packed) {
    return packed.narrow(0, kScaleBytes, packed.numel() - kScaleBytes);
  }

  Travelers travelers_;
};

// The order of the tensors in save_for_backward.
enum KeptOfRing : std::uint8_t {
  kRingQuery,
  kRingKey,
  kRingValue,
  kRingScaleInv,
  kRingSoftmaxScales,  // one per step
  kRingOutput,         // codes under delayed scaling
  kRingOutputScaleInv,
  kRingLse
};

struct KeptFp8Ring final : torch::CustomClassHolder {
  RingAttention how;
  Fp8Attention fp8;
  std::vector<at::Tensor> kept;        // dropout's choices per step; empty without dropout
  std::vector<at::ScalarType> dtypes;  // of query, key and value
};

bool is_delayed(const Fp8Attention& fp8) { return fp8.quantizers.o->known_scale().defined(); }

// The operands of a step: decoded codes. Scales are applied afterwards.
struct StepOperands {
  PartialHeads heads;
  at::Tensor query_scale_inv;
  at::Tensor key_scale_inv;
  PartialScores scores;
};

// The operands of the steps of a rank.
class StepCodes {
 public:
  StepCodes(const RingAttention& how, const KeptInputs& inputs, FormatId format)
      : how_(how),
        query_(decoded(inputs.query, format)),
        scale_inv_(inputs.scale_inv),
        travelers_(inputs.key, inputs.value),
        format_(format) {}

  const at::Tensor& query() const { return query_; }

  StepOperands of(const RingStep& step, const at::Tensor& present) const {
    const at::Tensor key_scale_inv = CodeTravelers::scale_inv(present);
    return {.heads = {step.query.of(query_), decoded(step.key.of(travelers_.key(present)), format_),
                      decoded(step.key.of(travelers_.value(present)), format_)},
            .query_scale_inv = scale_inv_,
            .key_scale_inv = key_scale_inv,
            .scores = {.allowed = step.allowed,
                       .keep = 1 - how_.dropout,
                       .factor = scale_inv_ * key_scale_inv * how_.scale}};
  }

 private:
  const RingAttention& how_;
  at::Tensor query_;
  at::Tensor scale_inv_;
  CodeTravelers travelers_;
  FormatId format_;
};

// softmax V of a step with a quantized softmax.
PartialAttention attend_to_step(const StepOperands& step, ChunkedQuantizer& cast) {
  const PartialHeads& heads = step.heads;
  const std::int64_t queries = heads.query.size(2);
  PartialAttention result = nothing_seen(heads.query, heads.value);
  if (heads.query.numel() == 0 || heads.key.numel() == 0) return result;
  const auto weights = [&](const QueryRows& rows) {
    at::Tensor made = partial_scores(heads, step.scores, rows);
    made.div_(exponentiate(made, rows.of(result.lse)));
    drop_partly(made, step.scores, rows);
    return made;
  };
  if (cast.needs_observation()) {
    for_query_rows(queries, [&](const QueryRows& rows) { cast.observe(weights(rows)); });
  }
  for_query_rows(queries, [&](const QueryRows& rows) {
    rows.of(result.output).copy_(sum_over_keys(cast.decode(weights(rows)), heads.value));
  });
  result.output.mul_(cast.scale_inv() * step.key_scale_inv);
  return result;
}

// Values over all keys for the backward steps.
struct CodedGradients {
  at::Tensor output;  // decoded codes
  at::Tensor scale_inv;
  at::Tensor delta;
  at::Tensor lse;
};

// Gradients of a step's query, key and value in FP32 before their cast.
std::vector<at::Tensor> gradients_of_step(const StepOperands& step, const CodedGradients& of,
                                          const at::Tensor& softmax_scale,
                                          const KeptFp8Ring& kept) {
  const PartialHeads& heads = step.heads;
  const std::int64_t groups = heads.key.size(1);
  std::vector<at::Tensor> made{at::zeros_like(heads.query), at::zeros_like(heads.key),
                               at::zeros_like(heads.value)};
  if (heads.query.numel() == 0 || heads.key.numel() == 0) return made;
  const at::Tensor factor = of.scale_inv * step.key_scale_inv;
  const auto weights = [&](const QueryRows& rows) {
    return partial_scores(heads, step.scores, rows).sub_(rows.of(of.lse)).exp_();
  };
  const auto of_scores = [&](const QueryRows& rows, const at::Tensor& softmax) {
    at::Tensor of_weights = compute_products(rows.of(of.output), heads.value).mul_(factor);
    drop_partly(of_weights, step.scores, rows);
    return of_weights.sub_(rows.of(of.delta)).mul_(softmax);
  };
  ChunkedQuantizer cast(kept.fp8.quantizers.d_p);
  const std::int64_t queries = heads.query.size(2);
  if (cast.needs_observation()) {
    for_query_rows(queries,
                   [&](const QueryRows& rows) { cast.observe(of_scores(rows, weights(rows))); });
  }
  ChunkedQuantizer cast_softmax(kept.fp8.quantizers.s, softmax_scale);
  for_query_rows(queries, [&](const QueryRows& rows) {
    at::Tensor softmax = weights(rows);
    const at::Tensor scores = cast.decode(of_scores(rows, softmax));
    drop_partly(softmax, step.scores, rows);
    made[2].add_(sum_over_queries(cast_softmax.decode(softmax), rows.of(of.output), groups));
    rows.of(made[0]).copy_(sum_over_keys(scores, heads.key));
    made[1].add_(sum_over_queries(scores, rows.of(heads.query), groups));
  });
  const at::Tensor scores_factor = cast.scale_inv() * kept.how.scale;
  made[0].mul_(scores_factor * step.key_scale_inv);
  made[1].mul_(scores_factor * step.query_scale_inv);
  made[2].mul_(cast_softmax.scale_inv() * of.scale_inv);
  return made;
}

class Fp8RingFunction : public torch::autograd::Function<Fp8RingFunction> {
 public:
  static at::Tensor forward(AutogradContext* context, const at::Tensor& query,
                            const at::Tensor& key, const at::Tensor& value,
                            const RingAttention* how, const Fp8Attention* fp8);
  static variable_list backward(AutogradContext* context, variable_list gradients);
};

at::Tensor Fp8RingFunction::forward(AutogradContext* context, const at::Tensor& query,
                                    const at::Tensor& key, const at::Tensor& value,
                                    const RingAttention* how, const Fp8Attention* fp8) {
  const at::AutoDispatchBelowADInplaceOrView below_autograd;
  const c10::impl::ExcludeDispatchKeyGuard no_autocast(c10::autocast_dispatch_keyset);
  auto kept = c10::make_intrusive<KeptFp8Ring>();
  kept->how = *how;
  kept->fp8 = *fp8;
  kept->dtypes = {query.scalar_type(), key.scalar_type(), value.scalar_type()};
  const KeptInputs inputs = cast_inputs({query, key, value}, fp8->quantizers.qkv);
  const StepCodes operands(*how, inputs, fp8->quantizers.qkv->format());
  const Ring ring(*how, query.size(2), key.size(2));
  const PartialAttention sum = nothing_seen(operands.query(), value);
  const bool delayed = is_delayed(*fp8);
  ChunkedQuantizer output(fp8->quantizers.o);
  std::vector<at::Tensor> softmax_scales;
  ring.for_steps(CodeTravelers::pack(inputs), [&](std::size_t, const RingStep& step,
                                                  const at::Tensor& present) {
    StepOperands own = operands.of(step, present);
    own.scores.kept = ring.draw_kept(own.heads.query, own.heads.key);
    if (own.scores.kept) kept->kept.push_back(*own.scores.kept);
    ChunkedQuantizer softmax(fp8->quantizers.s);
    PartialAttention part = attend_to_step(own, softmax);
    if (delayed) part.output = output.round(part.output, at::kFloat);
    softmax_scales.push_back(softmax.needs_observation() ? at::ones({1}, operands.query().options())
                                                         : softmax.scale().reshape({1}));
    add_partial({step.query.of(sum.output), step.query.of(sum.lse)}, part);
  });
  const at::Tensor result = sum.output.to(query.scalar_type());
  const bool keeps_codes = delayed || fp8->sums_output_codes;
  const at::Tensor output_kept = keeps_codes ? output.quantize(sum.output) : result;
  context->save_for_backward({inputs.query, inputs.key, inputs.value, inputs.scale_inv,
                              at::cat(softmax_scales), output_kept,
                              keeps_codes ? output.scale_inv() : at::Tensor(), sum.lse});
  context->saved_data["ring"] = c10::IValue::make_capsule(std::move(kept));
  return result;
}

CodedGradients coded_gradients(const variable_list& saved, const at::Tensor& gradient,
                               const Fp8Attention& fp8) {
  ChunkedQuantizer cast(fp8.quantizers.d_o);
  const at::Tensor values = cast.decode(gradient);
  const at::Tensor output =
      get_kept_output(saved[kRingOutput], saved[kRingOutputScaleInv], fp8.quantizers);
  return {.output = values,
          .scale_inv = cast.scale_inv(),
          .delta = (values * cast.scale_inv() * output).sum(-1, /*keepdim=*/true),
          .lse = seen_or(saved[kRingLse], -kUnseen)};
}

variable_list fp8_ring_gradients(AutogradContext* context, const variable_list& gradients) {
  const auto holder = context->saved_data["ring"].toCapsule();
  const auto& kept = static_cast<const KeptFp8Ring&>(*holder);
  check_no_second_derivative(kept.fp8.name);
  const variable_list saved = context->get_saved_variables();
  const at::AutoDispatchBelowADInplaceOrView below_autograd;
  const c10::impl::ExcludeDispatchKeyGuard no_autocast(c10::autocast_dispatch_keyset);
  const CodedGradients of = coded_gradients(saved, gradients[0], kept.fp8);
  const KeptInputs inputs{saved[kRingQuery], saved[kRingKey], saved[kRingValue],
                          saved[kRingScaleInv]};
  const StepCodes operands(kept.how, inputs, kept.fp8.quantizers.qkv->format());
  const Ring ring(kept.how, saved[kRingQuery].size(2), saved[kRingKey].size(2));
  const Travelers travelers(saved[kRingKey], saved[kRingValue]);
  const at::Tensor of_query = at::zeros_like(operands.query());
  const std::int64_t traveling = inputs.key.numel() + inputs.value.numel();
  PendingTensor arriving(at::zeros({traveling}, of_query.options()));
  const bool delayed = is_delayed(kept.fp8);
  ring.for_steps(CodeTravelers::pack(inputs),
                 [&](std::size_t i, const RingStep& step, const at::Tensor& present) {
                   StepOperands own = operands.of(step, present);
                   if (!kept.kept.empty()) own.scores.kept = kept.kept[i];
                   const CodedGradients part{.output = step.query.of(of.output),
                                             .scale_inv = of.scale_inv,
                                             .delta = step.query.of(of.delta),
                                             .lse = step.query.of(of.lse)};
                   const at::Tensor softmax_scale =
                       saved[kRingSoftmaxScales].narrow(0, static_cast<std::int64_t>(i), 1);
                   ChunkedQuantizer cast(delayed ? kept.fp8.quantizers.d_qkv : nullptr);
                   const std::vector<at::Tensor> made =
                       round_together(cast, gradients_of_step(own, part, softmax_scale, kept),
                                      std::vector<at::ScalarType>(3, at::kFloat));
                   step.query.of(of_query).add_(made[0]);
                   const at::Tensor sum = arriving.wait().clone();
                   step.key.of(travelers.key(sum)).add_(made[1]);
                   step.key.of(travelers.value(sum)).add_(made[2]);
                   arriving = ring.pass(sum, RingChannel::gradients);
                 });
  const at::Tensor home = arriving.wait();
  return {of_query.to(kept.dtypes[0]), travelers.key(home).to(kept.dtypes[1]),
          travelers.value(home).to(kept.dtypes[2]), at::Tensor(), at::Tensor()};
}

variable_list Fp8RingFunction::backward(AutogradContext* context, variable_list gradients) {
  return translating_errors([&] {
    const auto holder = context->saved_data["ring"].toCapsule();
    return naming_layer(static_cast<const KeptFp8Ring&>(*holder).fp8.name,
                        [&] { return fp8_ring_gradients(context, gradients); });
  });
}

}  // namespace

at::Tensor attend_in_fp8_ring(const QueryKeyValueHeads& heads, const RingAttention& how,
                              const Fp8Attention& fp8) {
  check_dtype_for_fp8(heads.query, fp8);
  return Fp8RingFunction::apply(heads.query, heads.key, heads.value, &how, &fp8);
}

}  // namespace telens
