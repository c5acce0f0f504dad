#include "core/modules/attention/fp8_ring_attention.h"

#include <ATen/TensorOperators.h>
#include <ATen/autocast_mode.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>
#include <torch/csrc/autograd/custom_function.h>

#include <utility>
#include <vector>

#include "core/modules/attention/fp8_attention.h"
#include "core/modules/attention/partial_attention.h"
#include "core/modules/attention/query_rows.h"
#include "core/modules/attention/ring_steps.h"
#include "core/modules/attention/unseen_keys.h"
#include "core/modules/shared/backward_errors.h"
#include "core/modules/shared/named_errors.h"
#include "core/modules/shared/second_derivative.h"
#include "core/ops/optional_tensor.h"
#include "core/ops/quantize.h"
#include "core/quantization/parted_cast.h"

namespace telens {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// Codes of keys and values behind the inverse of their scale, as the one tensor that travels.
class CodeTravelers {
 public:
  CodeTravelers(const at::Tensor& key, const at::Tensor& value) : travelers_(key, value) {}

  static at::Tensor pack(const at::Tensor& scale_inv, const at::Tensor& key,
                         const at::Tensor& value) {
    return at::cat({scale_inv.reshape({1}).view(at::kByte), Travelers::pack(key, value)});
  }
  static at::Tensor scale_inv(const at::Tensor& packed) {
    return packed.narrow(0, 0, kScaleBytes).view(at::kFloat);
  }
  at::Tensor key(const at::Tensor& packed) const { return travelers_.key(codes(packed)); }
  at::Tensor value(const at::Tensor& packed) const { return travelers_.value(codes(packed)); }

 private:
  static constexpr std::int64_t kScaleBytes = 4;  // FP32, in front: there it is aligned
  static at::Tensor codes(const at::Tensor& packed) {
    return packed.narrow(0, kScaleBytes, packed.numel() - kScaleBytes);
  }

  Travelers travelers_;
};

// The order of what save_for_backward keeps.
enum KeptOfRing : std::uint8_t {
  kRingQuery,
  kRingKey,
  kRingValue,
  kRingScaleInv,
  kRingSoftmaxScales,  // one a step
  kRingOutput,         // codes under delayed scaling
  kRingOutputScaleInv,
  kRingLse
};

struct KeptFp8Ring final : torch::CustomClassHolder {
  RingAttention how;
  Fp8Attention fp8;
  std::vector<at::Tensor> kept;        // dropout's choices of each step, without dropout none
  std::vector<at::ScalarType> dtypes;  // those of query, key and value
};

bool is_delayed(const Fp8Attention& fp8) { return fp8.quantizers.o->known_scale().defined(); }

// One step multiplies values of codes; their scales come afterwards.
struct StepOperands {
  PartialHeads heads;
  at::Tensor query_scale_inv;
  at::Tensor key_scale_inv;
  PartialScores scores;
};

// The operands of the steps of one rank.
class StepCodes {
 public:
  StepCodes(const RingAttention& how, const variable_list& codes, at::Tensor scale_inv,
            FormatId format)
      : how_(how),
        query_(decoded(codes[kRingQuery], format)),
        scale_inv_(std::move(scale_inv)),
        travelers_(codes[kRingKey], codes[kRingValue]),
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

// softmax V of one step, whose softmax is cast.
PartialAttention attend_to_step(const StepOperands& step, PartedCast& cast) {
  const PartialHeads& heads = step.heads;
  const std::int64_t groups = heads.key.size(1);
  const std::int64_t count = heads.query.size(1);
  const std::int64_t queries = heads.query.size(2);
  PartialAttention result = nothing_seen(heads.query, heads.value);
  if (heads.query.numel() == 0 || heads.key.numel() == 0) return result;
  const auto weights = [&](const QueryRows& rows) {
    at::Tensor made = partial_scores(heads, step.scores, rows);
    const at::Tensor shift = seen_or(made.amax(-1, /*keepdim=*/true), 0);
    made.sub_(shift).exp_();
    const at::Tensor sum = made.sum(-1, /*keepdim=*/true);
    rows.of(result.lse).copy_(sum.log().add_(shift));
    made.div_(sum.masked_fill(sum == 0, 1));
    drop_partly(made, step.scores, rows);
    return made;
  };
  if (cast.looks_first()) {
    for_query_rows(queries, [&](const QueryRows& rows) { cast.look(weights(rows)); });
  }
  for_query_rows(queries, [&](const QueryRows& rows) {
    const at::Tensor seen = decoded(cast.codes(weights(rows)), cast.format());
    rows.of(result.output)
        .copy_(groups_by_head(at::matmul(heads_by_group(seen, groups), heads.value), count));
  });
  result.output.mul_(cast.scale_inv() * step.key_scale_inv);
  return result;
}

// The backward of each step knows this of all keys.
struct CodedGradients {
  at::Tensor output;  // values of codes
  at::Tensor scale_inv;
  at::Tensor delta;
  at::Tensor lse;
};

// Gradients of one step's query, key and value in FP32, before their cast.
std::vector<at::Tensor> gradients_of_step(const StepOperands& step, const CodedGradients& of,
                                          const at::Tensor& softmax_scale,
                                          const KeptFp8Ring& kept) {
  const PartialHeads& heads = step.heads;
  const std::int64_t groups = heads.key.size(1);
  const std::int64_t count = heads.query.size(1);
  std::vector<at::Tensor> made{at::zeros_like(heads.query), at::zeros_like(heads.key),
                               at::zeros_like(heads.value)};
  if (heads.query.numel() == 0 || heads.key.numel() == 0) return made;
  const at::Tensor factor = of.scale_inv * step.key_scale_inv;
  const auto weights = [&](const QueryRows& rows) {
    return partial_scores(heads, step.scores, rows).sub_(rows.of(of.lse)).exp_();
  };
  const auto of_scores = [&](const QueryRows& rows, const at::Tensor& softmax) {
    at::Tensor of_weights = groups_by_head(at::matmul(heads_by_group(rows.of(of.output), groups),
                                                      heads.value.transpose(-1, -2)),
                                           count)
                                .mul_(factor);
    drop_partly(of_weights, step.scores, rows);
    return of_weights.sub_(rows.of(of.delta)).mul_(softmax);
  };
  PartedCast cast(kept.fp8.quantizers.d_p);
  const std::int64_t queries = heads.query.size(2);
  if (cast.looks_first()) {
    for_query_rows(queries,
                   [&](const QueryRows& rows) { cast.look(of_scores(rows, weights(rows))); });
  }
  const FormatId format = kept.fp8.quantizers.s->format();
  for_query_rows(queries, [&](const QueryRows& rows) {
    at::Tensor softmax = weights(rows);
    const at::Tensor scores = decoded(cast.codes(of_scores(rows, softmax)), cast.format());
    drop_partly(softmax, step.scores, rows);
    const at::Tensor seen =
        decoded(ops::quantize_fp8(softmax, softmax_scale, std::nullopt, format), format);
    made[2].add_(at::matmul(heads_by_group(seen, groups).transpose(-1, -2),
                            heads_by_group(rows.of(of.output), groups)));
    const at::Tensor grouped = heads_by_group(scores, groups);
    rows.of(made[0]).copy_(groups_by_head(at::matmul(grouped, heads.key), count));
    made[1].add_(
        at::matmul(grouped.transpose(-1, -2), heads_by_group(rows.of(heads.query), groups)));
  });
  const at::Tensor scores_factor = cast.scale_inv() * kept.how.scale;
  made[0].mul_(scores_factor * step.key_scale_inv);
  made[1].mul_(scores_factor * step.query_scale_inv);
  made[2].mul_(softmax_scale.reciprocal() * of.scale_inv);
  return made;
}

// Values of the codes of one step's gradients.
void round_together(std::vector<at::Tensor>& gradients, const Fp8Attention& fp8) {
  PartedCast cast(fp8.quantizers.d_qkv);
  const std::vector<at::Tensor> codes = cast_together(cast, gradients);
  for (std::size_t i = 0; i < codes.size(); ++i) {
    gradients[i] = ops::dequantize_fp8(codes[i], cast.scale_inv(), cast.format(), at::kFloat);
  }
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
  PartedCast qkv(fp8->quantizers.qkv);
  const std::vector<at::Tensor> codes = cast_together(qkv, {query, key, value});
  const StepCodes operands(*how, codes, qkv.scale_inv(), qkv.format());
  const Ring ring(*how, query.size(2), key.size(2));
  const PartialAttention sum = nothing_seen(operands.query(), value);
  const bool delayed = is_delayed(*fp8);
  PartedCast output(fp8->quantizers.o);
  std::vector<at::Tensor> softmax_scales;
  at::Tensor present = CodeTravelers::pack(qkv.scale_inv(), codes[kRingKey], codes[kRingValue]);
  for (std::int64_t i = 0; i < ring.steps(); ++i) {
    PendingTensor next;
    if (i + 1 < ring.steps()) next = ring.pass(present, RingChannel::values);
    const RingStep step = ring.step(i);
    StepOperands own = operands.of(step, present);
    own.scores.kept = ring.draw_kept(own.heads.query, own.heads.key);
    if (own.scores.kept) kept->kept.push_back(*own.scores.kept);
    PartedCast softmax(fp8->quantizers.s);
    PartialAttention part = attend_to_step(own, softmax);
    if (delayed) {
      part.output = ops::dequantize_fp8(output.codes(part.output), output.scale_inv(),
                                        output.format(), at::kFloat);
    }
    softmax_scales.push_back(softmax.looks_first() ? at::ones({1}, operands.query().options())
                                                   : softmax.scale().reshape({1}));
    add_partial({step.query.of(sum.output), step.query.of(sum.lse)}, part);
    if (next.defined()) present = next.wait();
  }
  const at::Tensor result = sum.output.to(query.scalar_type());
  const at::Tensor output_kept = delayed ? output.codes(sum.output) : result;
  context->save_for_backward({codes[kRingQuery], codes[kRingKey], codes[kRingValue],
                              qkv.scale_inv(), at::cat(softmax_scales), output_kept,
                              delayed ? output.scale_inv() : at::Tensor(), sum.lse});
  context->saved_data["ring"] = c10::IValue::make_capsule(std::move(kept));
  return result;
}

CodedGradients coded_gradients(const variable_list& saved, const at::Tensor& gradient,
                               const Fp8Attention& fp8) {
  PartedCast cast(fp8.quantizers.d_o);
  const at::Tensor values = decoded(cast.codes(gradient), cast.format());
  const at::Tensor output =
      saved[kRingOutputScaleInv].defined()
          ? ops::dequantize_fp8(saved[kRingOutput], saved[kRingOutputScaleInv],
                                fp8.quantizers.o->format(), at::kFloat)
          : saved[kRingOutput].to(at::kFloat);
  return {.output = values,
          .scale_inv = cast.scale_inv(),
          .delta = (values * cast.scale_inv() * output).sum(-1, /*keepdim=*/true),
          .lse = seen_or(saved[kRingLse], -kUnseen)};
}

variable_list fp8_ring_gradients(AutogradContext* context, const variable_list& gradients) {
  const auto holder = context->saved_data["ring"].toCapsule();
  const auto& kept = static_cast<const KeptFp8Ring&>(*holder);
  refuse_second_derivative(kept.fp8.name);
  const variable_list saved = context->get_saved_variables();
  const at::AutoDispatchBelowADInplaceOrView below_autograd;
  const c10::impl::ExcludeDispatchKeyGuard no_autocast(c10::autocast_dispatch_keyset);
  const CodedGradients of = coded_gradients(saved, gradients[0], kept.fp8);
  const StepCodes operands(kept.how, saved, saved[kRingScaleInv],
                           kept.fp8.quantizers.qkv->format());
  const Ring ring(kept.how, saved[kRingQuery].size(2), saved[kRingKey].size(2));
  const Travelers travelers(saved[kRingKey], saved[kRingValue]);
  const at::Tensor of_query = at::zeros_like(operands.query());
  at::Tensor present =
      CodeTravelers::pack(saved[kRingScaleInv], saved[kRingKey], saved[kRingValue]);
  const std::int64_t traveling = saved[kRingKey].numel() + saved[kRingValue].numel();
  PendingTensor arriving(at::zeros({traveling}, of_query.options()));
  for (std::int64_t i = 0; i < ring.steps(); ++i) {
    PendingTensor next;
    if (i + 1 < ring.steps()) next = ring.pass(present, RingChannel::values);
    const RingStep step = ring.step(i);
    StepOperands own = operands.of(step, present);
    if (!kept.kept.empty()) own.scores.kept = kept.kept[static_cast<std::size_t>(i)];
    const CodedGradients part{.output = step.query.of(of.output),
                              .scale_inv = of.scale_inv,
                              .delta = step.query.of(of.delta),
                              .lse = step.query.of(of.lse)};
    std::vector<at::Tensor> made =
        gradients_of_step(own, part, saved[kRingSoftmaxScales].narrow(0, i, 1), kept);
    if (saved[kRingOutputScaleInv].defined()) round_together(made, kept.fp8);
    step.query.of(of_query).add_(made[0]);
    const at::Tensor sum = arriving.wait().clone();
    step.key.of(travelers.key(sum)).add_(made[1]);
    step.key.of(travelers.value(sum)).add_(made[2]);
    arriving = ring.pass(sum, RingChannel::gradients);
    if (next.defined()) present = next.wait();
  }
  const at::Tensor home = arriving.wait();
  return {of_query.to(kept.dtypes[0]), travelers.key(home).to(kept.dtypes[1]),
          travelers.value(home).to(kept.dtypes[2]), at::Tensor(), at::Tensor()};
}

variable_list Fp8RingFunction::backward(AutogradContext* context, variable_list gradients) {
  return in_backward([&] {
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
