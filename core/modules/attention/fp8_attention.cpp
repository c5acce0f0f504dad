#include "core/modules/attention/fp8_attention.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/bernoulli.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>
#include <fmt/ranges.h>
#include <torch/csrc/autograd/custom_function.h>

#include <utility>
#include <vector>

#include "core/modules/attention/fp8_scores.h"
#include "core/modules/shared/backward_errors.h"
#include "core/modules/shared/named_errors.h"
#include "core/modules/shared/second_derivative.h"
#include "core/ops/optional_tensor.h"
#include "core/ops/quantize.h"
#include "core/quantization/parted_cast.h"

namespace telens {
namespace {

using ops::if_defined;
using ops::or_undefined;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// Everything that the backward needs besides tensors; autograd keeps those of `how`.
struct KeptFp8Attention final : torch::CustomClassHolder {
  ScoredAttention how;
  Fp8Attention fp8;
  std::vector<at::ScalarType> dtypes;  // those of query, key and value
};

// The order of what save_for_backward keeps.
enum Kept : std::uint8_t {
  kQueryCodes,
  kKeyCodes,
  kValueCodes,
  kCodesScaleInv,
  kSoftmaxScale,
  kAllowed,
  kBlind,
  kBias,
  kOffset,
  kUndropped
};

at::Tensor decoded(const at::Tensor& codes, FormatId format) {
  return ops::decode_fp8(codes, format, at::kFloat);
}

// Dropout of the softmax, by choices made before: x where they are true, divided by how many are.
void drop_softmax(at::Tensor& x, const at::Tensor& undropped, const QueryRows& rows, double keep) {
  if (!undropped.defined()) return;
  x = x * rows.of(undropped);
  if (keep > 0) x.div_(keep);  // dropout 1 leaves nothing
}

// The softmax as V meets it, before its cast.
at::Tensor dropped_softmax(Fp8Softmax& softmax, const QueryRows& rows, const at::Tensor& undropped,
                           double keep) {
  at::Tensor weights = softmax.of(rows).weights;
  drop_softmax(weights, undropped, rows, keep);
  return weights;
}

at::Tensor draw_undropped(const at::Tensor& query, const at::Tensor& key, double dropout) {
  if (dropout == 0) return {};
  const at::Tensor like = at::empty({query.size(0), query.size(1), query.size(2), key.size(2)},
                                    query.options().dtype(at::kFloat).device(query.device()));
  return at::bernoulli(like, 1 - dropout).to(at::kBool);
}

bool has_scores(const at::Tensor& query, const at::Tensor& key) {
  return query.numel() != 0 && key.numel() != 0;
}

// softmax(P) V, whose scales are multiplied in at the end. FP32.
at::Tensor attend_to_codes(const CodedHeads& heads, const ScoredAttention& how, PartedCast& cast,
                           const at::Tensor& undropped) {
  const std::int64_t count = heads.query.size(1);
  const std::int64_t groups = heads.key.size(1);
  const std::int64_t queries = heads.query.size(2);
  const double keep = 1 - how.dropout;
  Fp8Softmax softmax(heads, how);
  if (cast.looks_first()) {
    for_query_rows(queries, [&](const QueryRows& rows) {
      cast.look(dropped_softmax(softmax, rows, undropped, keep));
    });
  }
  at::Tensor output =
      at::empty({heads.query.size(0), count, queries, heads.value.size(3)}, heads.query.options());
  for_query_rows(queries, [&](const QueryRows& rows) {
    const at::Tensor weights =
        decoded(cast.codes(dropped_softmax(softmax, rows, undropped, keep)), cast.format());
    rows.of(output).copy_(
        groups_by_head(at::matmul(heads_by_group(weights, groups), heads.value), count));
  });
  return output.mul_(cast.scale_inv() * heads.scale_inv);
}

class Fp8AttentionFunction : public torch::autograd::Function<Fp8AttentionFunction> {
 public:
  static at::Tensor forward(AutogradContext* context, const at::Tensor& query,
                            const at::Tensor& key, const at::Tensor& value,
                            const std::optional<at::Tensor>& bias,
                            const std::optional<at::Tensor>& offset, const ScoredAttention* given,
                            const Fp8Attention* fp8);
  static variable_list backward(AutogradContext* context, variable_list gradients);
};

at::Tensor Fp8AttentionFunction::forward(AutogradContext* context, const at::Tensor& query,
                                         const at::Tensor& key, const at::Tensor& value,
                                         const std::optional<at::Tensor>& bias,
                                         const std::optional<at::Tensor>& offset,
                                         const ScoredAttention* given, const Fp8Attention* fp8) {
  const at::AutoDispatchBelowADInplaceOrView below_autograd;
  auto kept = c10::make_intrusive<KeptFp8Attention>();
  kept->how = {.mask = {.is_causal = given->mask.is_causal},
               .has_sink = given->has_sink,
               .dropout = given->dropout,
               .scale = given->scale};
  kept->fp8 = *fp8;
  kept->dtypes = {query.scalar_type(), key.scalar_type(), value.scalar_type()};
  ScoredAttention how = *given;
  how.bias = bias;
  how.offset = offset;

  PartedCast qkv(fp8->quantizers.qkv);
  const std::vector<at::Tensor> codes = cast_together(qkv, {query, key, value});
  const CodedHeads heads{.query = decoded(codes[0], qkv.format()),
                         .key = decoded(codes[1], qkv.format()),
                         .value = decoded(codes[2], qkv.format()),
                         .scale_inv = qkv.scale_inv()};
  PartedCast s(fp8->quantizers.s);
  const at::Tensor undropped = draw_undropped(query, key, given->dropout);
  const at::Tensor attended =
      has_scores(query, key)
          ? attend_to_codes(heads, how, s, undropped)
          : at::zeros({query.size(0), query.size(1), query.size(2), value.size(3)},
                      heads.query.options());
  PartedCast o(fp8->quantizers.o);
  const at::Tensor output_codes = o.codes(attended);
  const at::Tensor output =
      ops::dequantize_fp8(output_codes, o.scale_inv(), o.format(), query.scalar_type());
  fp8->casts.output->scale = o.scale();
  context->save_for_backward({codes[0], codes[1], codes[2], qkv.scale_inv(), s.scale(),
                              or_undefined(given->mask.allowed), or_undefined(given->mask.blind),
                              or_undefined(bias), or_undefined(offset), undropped});
  context->saved_data["fp8_attention"] = c10::IValue::make_capsule(std::move(kept));
  return output;
}

// One backward: the scores anew, and the gradients of a few queries at a time.
class Fp8Gradients {
 public:
  Fp8Gradients(const KeptFp8Attention& kept, const variable_list& saved,
               const at::Tensor& output_gradient);

  // dQ, dK and dV in FP32, before their cast; those of bias and offset besides.
  void compute();

  std::vector<at::Tensor> of_inputs;
  at::Tensor of_bias;    // undefined: there is none
  at::Tensor of_offset;  // the same

 private:
  // Gradients of P, and those of S summed with its weights.
  struct ScoreGradients {
    at::Tensor of_scores;
    at::Tensor delta;
  };

  const ScoreGradients& score_gradients(const QueryRows& rows);
  void add_rows(const QueryRows& rows);
  void add_to_bias(const QueryRows& rows, const at::Tensor& of_scores);

  const KeptFp8Attention& kept_;
  const variable_list& saved_;
  ScoredAttention how_;
  CodedHeads heads_;
  at::Tensor output_gradient_;  // values of codes
  at::Tensor output_scale_inv_;
  PartedCast scores_;
  std::optional<Fp8Softmax> softmax_;
  std::int64_t newest_rows_ = -1;
  ScoreGradients newest_;
};

Fp8Gradients::Fp8Gradients(const KeptFp8Attention& kept, const variable_list& saved,
                           const at::Tensor& output_gradient)
    : kept_(kept), saved_(saved), how_(kept.how), scores_(kept.fp8.quantizers.d_p) {
  how_.mask.allowed = if_defined(saved[kAllowed]);
  how_.mask.blind = if_defined(saved[kBlind]);
  how_.bias = if_defined(saved[kBias]);
  how_.offset = if_defined(saved[kOffset]);
  const FormatId format = kept.fp8.quantizers.qkv->format();
  heads_ = {.query = decoded(saved[kQueryCodes], format),
            .key = decoded(saved[kKeyCodes], format),
            .value = decoded(saved[kValueCodes], format),
            .scale_inv = saved[kCodesScaleInv]};
  PartedCast cast(kept.fp8.quantizers.d_o);
  output_gradient_ = decoded(cast.codes(output_gradient), cast.format());
  output_scale_inv_ = cast.scale_inv();
  softmax_.emplace(heads_, how_);
  of_inputs = {at::zeros_like(heads_.query), at::zeros_like(heads_.key),
               at::zeros_like(heads_.value)};
  if (how_.bias) of_bias = at::zeros_like(*how_.bias, heads_.query.options());
  if (how_.offset) of_offset = at::zeros_like(*how_.offset, heads_.query.options());
}

const Fp8Gradients::ScoreGradients& Fp8Gradients::score_gradients(const QueryRows& rows) {
  if (newest_rows_ == rows.first) return newest_;
  const at::Tensor& weights = softmax_->of(rows).weights;
  const std::int64_t groups = heads_.key.size(1);
  at::Tensor of_weights =
      groups_by_head(at::matmul(heads_by_group(rows.of(output_gradient_), groups),
                                heads_.value.transpose(-1, -2)),
                     heads_.query.size(1))
          .mul_(output_scale_inv_ * heads_.scale_inv);
  drop_softmax(of_weights, saved_[kUndropped], rows, 1 - how_.dropout);
  at::Tensor delta = (weights * of_weights).sum(-1, /*keepdim=*/true);
  newest_ = {of_weights.sub_(delta).mul_(weights), std::move(delta)};
  newest_rows_ = rows.first;
  return newest_;
}

void Fp8Gradients::add_to_bias(const QueryRows& rows, const at::Tensor& of_scores) {
  const at::Tensor into = rows.of_broadcast(of_bias);
  into.add_(of_scores.sum_to_size(into.sizes()));
}

void Fp8Gradients::add_rows(const QueryRows& rows) {
  const std::int64_t groups = heads_.key.size(1);
  const ScoreGradients& gradients = score_gradients(rows);
  const SoftmaxRows& softmax = softmax_->of(rows);
  if (of_offset.defined()) {
    of_offset.sub_((softmax.sink * gradients.delta).sum_to_size(of_offset.sizes()));
  }
  const FormatId format = kept_.fp8.quantizers.s->format();
  const at::Tensor weights = decoded(
      ops::quantize_fp8(dropped_softmax(*softmax_, rows, saved_[kUndropped], 1 - how_.dropout),
                        saved_[kSoftmaxScale], std::nullopt, format),
      format);
  of_inputs[2].add_(at::matmul(heads_by_group(weights, groups).transpose(-1, -2),
                               heads_by_group(rows.of(output_gradient_), groups)));
  const at::Tensor of_scores = decoded(scores_.codes(gradients.of_scores), scores_.format());
  const at::Tensor grouped = heads_by_group(of_scores, groups);
  rows.of(of_inputs[0])
      .copy_(groups_by_head(at::matmul(grouped, heads_.key), heads_.query.size(1)));
  of_inputs[1].add_(
      at::matmul(grouped.transpose(-1, -2), heads_by_group(rows.of(heads_.query), groups)));
  if (of_bias.defined()) add_to_bias(rows, of_scores);
}

void Fp8Gradients::compute() {
  if (!has_scores(heads_.query, heads_.key)) return;
  const std::int64_t queries = heads_.query.size(2);
  if (scores_.looks_first()) {
    for_query_rows(queries,
                   [&](const QueryRows& rows) { scores_.look(score_gradients(rows).of_scores); });
  }
  for_query_rows(queries, [&](const QueryRows& rows) { add_rows(rows); });
  const at::Tensor factor = scores_.scale_inv() * heads_.scale_inv * how_.scale;
  of_inputs[0].mul_(factor);
  of_inputs[1].mul_(factor);
  of_inputs[2].mul_(saved_[kSoftmaxScale].reciprocal() * output_scale_inv_);
  if (of_bias.defined()) of_bias.mul_(scores_.scale_inv());
}

variable_list fp8_gradients_of(AutogradContext* context, const variable_list& gradients) {
  const auto holder = context->saved_data["fp8_attention"].toCapsule();
  const auto& kept = static_cast<const KeptFp8Attention&>(*holder);
  refuse_second_derivative(kept.fp8.name);
  const c10::impl::ExcludeDispatchKeyGuard no_torch_autocast(c10::autocast_dispatch_keyset);
  const variable_list saved = context->get_saved_variables();
  const at::AutoDispatchBelowADInplaceOrView below_autograd;
  Fp8Gradients made(kept, saved, gradients[0]);
  made.compute();
  PartedCast cast(kept.fp8.quantizers.d_qkv);
  const std::vector<at::Tensor> codes = cast_together(cast, made.of_inputs);
  kept.fp8.casts.input_gradients->scale = cast.scale();
  variable_list all;
  for (std::size_t i = 0; i < codes.size(); ++i) {
    all.push_back(ops::dequantize_fp8(codes[i], cast.scale_inv(), cast.format(), kept.dtypes[i]));
  }
  const auto typed = [&](const at::Tensor& gradient, const at::Tensor& like) {
    return gradient.defined() ? gradient.to(like.scalar_type()) : gradient;
  };
  all.push_back(typed(made.of_bias, saved[kBias]));
  all.push_back(typed(made.of_offset, saved[kOffset]));
  all.resize(all.size() + 2);  // other arguments
  if (kept.fp8.first_in_region) kept.fp8.region->update(/*backward=*/true);
  return all;
}

variable_list Fp8AttentionFunction::backward(AutogradContext* context, variable_list gradients) {
  return in_backward([&] {
    const auto holder = context->saved_data["fp8_attention"].toCapsule();
    return naming_layer(static_cast<const KeptFp8Attention&>(*holder).fp8.name,
                        [&] { return fp8_gradients_of(context, gradients); });
  });
}

}  // namespace

void check_dtype_for_fp8(const at::Tensor& query, const Fp8Attention& fp8) {
  if (query.scalar_type() == at::kDouble) {
    raise<ShapeError>(
        "{}: query has dtype Double; FP8 attention (fp8_dpa) takes BFloat16, Half or Float",
        fp8.name);
  }
}

at::Tensor attend_in_fp8(const QueryKeyValueHeads& heads, const ScoredAttention& how,
                         const Fp8Attention& fp8) {
  check_dtype_for_fp8(heads.query, fp8);
  if (how.choice) {
    *how.choice = {.kernel = "FP8 attention by formulas",
                   .computed_in = at::kFloat,
                   .cast_to = name_of(fp8.quantizers.qkv->format())};
  }
  return Fp8AttentionFunction::apply(heads.query, heads.key, heads.value, how.bias, how.offset,
                                     &how, &fp8);
}

QueryKeyValueHeads cast_heads(const QueryKeyValueHeads& heads, const Fp8Attention& fp8) {
  const at::NoGradGuard no_grad;
  const at::Tensor known = fp8.quantizers.qkv->known_scale();
  PartedCast cast(known.defined() ? fp8.quantizers.qkv->frozen_at(known) : fp8.quantizers.qkv);
  const std::vector<at::Tensor> codes =
      cast_together(cast, {heads.query.detach(), heads.key.detach(), heads.value.detach()});
  const auto values = [&](std::size_t i) {
    return ops::dequantize_fp8(codes[i], cast.scale_inv(), cast.format(), at::kFloat);
  };
  return {values(0), values(1), values(2)};
}

}  // namespace telens
