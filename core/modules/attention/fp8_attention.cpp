#include "core/modules/attention/fp8_attention.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/exp.h>
#include <ATen/ops/maximum.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>
#include <fmt/ranges.h>
#include <torch/csrc/autograd/custom_function.h>

#include <utility>
#include <vector>

#include "core/modules/attention/attention_scores.h"
#include "core/modules/attention/score_block.h"
#include "core/modules/shared/autograd_utils.h"
#include "core/ops/device.h"
#include "core/ops/quantize.h"
#include "core/ops/tensor_utils.h"
#include "core/quantization/chunked_quantizer.h"
#include "core/quantization/delayed_scaling.h"
#include "core/quantization/quantized_payload.h"

namespace telens {
namespace {

using ops::if_defined;
using ops::or_undefined;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

struct SoftmaxBlock {
  at::Tensor weights;  // [samples, heads, queries, keys]; 0 if fully masked
  at::Tensor sink;     // [samples, heads, queries, 1]; undefined without a sink
};

// Returns the softmax in FP32, without dropout. Caches the result of the last block.
class Fp8Softmax {
 public:
  Fp8Softmax(const CodedHeads& heads, const AttentionRules& rules);

  const SoftmaxBlock& of(const ScoreBlock& block);

 private:
  const CodedHeads& heads_;
  const AttentionRules& rules_;
  RuledScores ruled_;
  at::Tensor factor_;  // of the GEMM
  at::Tensor sink_;    // undefined without a sink
  ScoreBlock kept_{};
  SoftmaxBlock newest_;
};

Fp8Softmax::Fp8Softmax(const CodedHeads& heads, const AttentionRules& rules)
    : heads_(heads),
      rules_(rules),
      ruled_(rules),
      factor_(heads.scale_inv * heads.scale_inv * rules.scale),
      sink_(get_sink_score(rules, factor_.options())) {}

const SoftmaxBlock& Fp8Softmax::of(const ScoreBlock& block) {
  if (kept_ == block) return newest_;
  at::Tensor weights = ruled_(compute_products(block.of_queries(heads_.query.over_size),
                                               block.of_keys(heads_.key.over_size))
                                  .mul_(factor_),
                              block);
  at::Tensor largest = weights.amax(-1, /*keepdim=*/true);
  at::Tensor sink;
  if (sink_.defined()) {
    sink = block.of_scores(sink_);
    largest = at::maximum(largest, sink);
  }
  const at::Tensor shift = seen_or(largest, 0);
  weights.sub_(shift).exp_();
  at::Tensor sum = weights.sum(-1, /*keepdim=*/true);
  if (sink.defined()) {
    sink = (sink - shift).exp_();
    sum = sum + sink;
    sink.div_(sum);
  }
  weights.div_(sum.masked_fill(sum == 0, 1));
  kept_ = block;
  newest_ = {std::move(weights), std::move(sink)};
  return newest_;
}

// The non-tensor state of the backward.
struct KeptFp8Attention final : torch::CustomClassHolder {
  AttentionRules rules;
  ScoreDropout dropout;
  Fp8Attention fp8;
  std::vector<at::ScalarType> dtypes;  // of query, key and value
};

// The order of the tensors in save_for_backward.
enum Kept : std::uint8_t {
  kQueryKept,
  kKeyKept,
  kValueKept,
  kCodesScaleInv,
  kSoftmaxScale,
  kBias,
  kOffset,
  kChoices,
  kOutputKept,  // undefined if the sum of output times gradient comes from the scores
  kOutputScaleInv
};

// The softmax with dropout, before its cast.
at::Tensor dropped_softmax(Fp8Softmax& softmax, const ScoreBlock& block,
                           const ScoreDropout& dropout) {
  const at::Tensor& weights = softmax.of(block).weights;
  if (dropout.probability() == 0) return weights;
  const at::Tensor dropped = weights.clone(at::MemoryFormat::Contiguous);
  dropout.apply(dropped, block);
  return dropped;
}

// Small problems keep the original RNG stream.
ScoreDropout make_dropout(const at::Tensor& query, const at::Tensor& key, double probability) {
  const ScoreShape shape = score_shape(query, key);
  return ops::is_on_host(query) && shape.scores() > block_limits().most_whole
             ? ScoreDropout::seeded(probability)
             : ScoreDropout::drawn(shape, query, probability);
}

bool has_scores(const at::Tensor& query, const at::Tensor& key) {
  return query.numel() != 0 && key.numel() != 0;
}

// softmax(P) V in FP32; scales are applied at the end.
at::Tensor attend_to_codes(const CodedHeads& heads, const AttentionRules& rules,
                           ChunkedQuantizer& cast, const ScoreDropout& dropout) {
  Fp8Softmax softmax(heads, rules);
  const at::Tensor& query = heads.query.over_size;
  const at::Tensor& value = heads.value.over_positions;
  const BlockedScores blocks = make_blocked_scores(query, heads.key.over_size, rules);
  if (cast.needs_observation()) {
    for_score_blocks(blocks, [&](const ScoreBlock& block) {
      cast.observe(dropped_softmax(softmax, block, dropout));
    });
  }
  at::Tensor output =
      at::zeros({query.size(0), query.size(1), query.size(2), value.size(3)}, query.options());
  for_score_blocks(blocks, [&](const ScoreBlock& block) {
    const at::Tensor weights = cast.decode(dropped_softmax(softmax, block, dropout));
    block.of_queries(output).copy_(sum_over_keys(weights, block.of_keys(value)));
  });
  return output.mul_(cast.scale_inv() * heads.scale_inv);
}

struct CastOutput {
  at::Tensor values;          // result of the attention
  at::Tensor kept;            // for the backward's sum of output times gradient; may be undefined
  at::Tensor kept_scale_inv;  // defined if `kept` are codes
};

CastOutput cast_output(const at::Tensor& attended, at::ScalarType dtype, const Fp8Attention& fp8) {
  ChunkedQuantizer cast(fp8.quantizers.o);
  if (!cast.quantizes()) {
    const at::Tensor values = attended.to(dtype);
    return {values, values, {}};
  }
  const at::Tensor codes = cast.quantize(attended);
  const at::Tensor values = ops::dequantize_fp8(codes, cast.scale_inv(), cast.format(), dtype);
  fp8.scales.output->publish(cast.scale());
  if (!fp8.sums_output_codes) return {values, {}, {}};
  return {values, codes, cast.scale_inv()};
}

class Fp8AttentionFunction : public torch::autograd::Function<Fp8AttentionFunction> {
 public:
  static at::Tensor forward(AutogradContext* context, const at::Tensor& query,
                            const at::Tensor& key, const at::Tensor& value,
                            const std::optional<at::Tensor>& bias,
                            const std::optional<at::Tensor>& offset, const AttentionRules* rules,
                            const Fp8Attention* fp8);
  static variable_list backward(AutogradContext* context, variable_list gradients);
};

at::Tensor Fp8AttentionFunction::forward(AutogradContext* context, const at::Tensor& query,
                                         const at::Tensor& key, const at::Tensor& value,
                                         const std::optional<at::Tensor>& bias,
                                         const std::optional<at::Tensor>& offset,
                                         const AttentionRules* rules, const Fp8Attention* fp8) {
  const at::AutoDispatchBelowADInplaceOrView below_autograd;
  auto kept = c10::make_intrusive<KeptFp8Attention>();
  kept->fp8 = *fp8;
  kept->dtypes = {query.scalar_type(), key.scalar_type(), value.scalar_type()};
  kept->rules = without_learned(*rules);
  kept->dropout = make_dropout(query, key, rules->dropout);

  const KeptInputs inputs = cast_inputs({query, key, value}, fp8->quantizers.qkv);
  ChunkedQuantizer s(fp8->quantizers.s);
  const at::Tensor attended =
      has_scores(query, key)
          ? attend_to_codes(make_forward_operands(inputs, *fp8->quantizers.qkv), *rules, s,
                            kept->dropout)
          : at::zeros({query.size(0), query.size(1), query.size(2), value.size(3)},
                      query.options().dtype(at::kFloat));
  const CastOutput output = cast_output(attended, query.scalar_type(), *fp8);
  context->save_for_backward({inputs.query, inputs.key, inputs.value, inputs.scale_inv, s.scale(),
                              or_undefined(bias), or_undefined(offset), kept->dropout.choices(),
                              output.kept, output.kept_scale_inv});
  kept->dropout.set_choices({});
  context->saved_data["fp8_attention"] = c10::IValue::make_capsule(std::move(kept));
  return output.values;
}

// One backward: recomputes the scores and computes gradients one block at a time.
class Fp8Gradients {
 public:
  Fp8Gradients(const KeptFp8Attention& kept, const variable_list& saved,
               const at::Tensor& output_gradient);

  // dQ, dK and dV in FP32 before their cast; also the gradients of bias and offset.
  void compute();

  std::vector<at::Tensor> of_inputs;
  at::Tensor of_bias;    // undefined without a bias
  at::Tensor of_offset;  // undefined without an offset

 private:
  // Gradients of P, and the weighted sums of the gradients of S.
  struct ScoreGradients {
    at::Tensor of_scores;
    at::Tensor delta;
  };

  const ScoreGradients& score_gradients(const ScoreBlock& block);
  void add(const ScoreBlock& block);

  const KeptFp8Attention& kept_;
  const variable_list& saved_;
  AttentionRules rules_;
  ScoreDropout dropout_;
  CodedHeads heads_;
  CodedTensor output_gradient_;
  at::Tensor delta_;  // [batch, heads, seq_q, 1]; undefined if computed per block
  ChunkedQuantizer weights_;
  ChunkedQuantizer scores_;
  std::optional<Fp8Softmax> softmax_;
  ScoreBlock newest_block_{};
  ScoreGradients newest_;
};

Fp8Gradients::Fp8Gradients(const KeptFp8Attention& kept, const variable_list& saved,
                           const at::Tensor& output_gradient)
    : kept_(kept),
      saved_(saved),
      rules_(with_learned(kept.rules, saved[kBias], saved[kOffset])),
      dropout_(kept.dropout),
      heads_(make_backward_operands(
          {saved[kQueryKept], saved[kKeyKept], saved[kValueKept], saved[kCodesScaleInv]},
          *kept.fp8.quantizers.qkv)),
      output_gradient_(cast_output_gradient(output_gradient, kept.fp8.quantizers.d_o)),
      weights_(kept.fp8.quantizers.s, saved[kSoftmaxScale]),
      scores_(kept.fp8.quantizers.d_p) {
  dropout_.set_choices(saved[kChoices]);
  if (saved[kOutputKept].defined()) {
    const at::Tensor gradient = weights_.quantizes()
                                    ? output_gradient_.rows.over_size * output_gradient_.scale_inv
                                    : output_gradient.to(at::kFloat);
    delta_ = (gradient *
              get_kept_output(saved[kOutputKept], saved[kOutputScaleInv], kept.fp8.quantizers))
                 .sum(-1, /*keepdim=*/true);
  }
  softmax_.emplace(heads_, rules_);
  const at::TensorOptions options = output_gradient_.rows.over_size.options();
  for (const auto kept_input : {kQueryKept, kKeyKept, kValueKept}) {
    of_inputs.push_back(at::zeros(saved[kept_input].sizes(), options));
  }
  if (rules_.bias && saved[kBias].requires_grad()) of_bias = at::zeros_like(saved[kBias], options);
  if (rules_.offset) of_offset = at::zeros_like(saved[kOffset], options);
}

const Fp8Gradients::ScoreGradients& Fp8Gradients::score_gradients(const ScoreBlock& block) {
  if (newest_block_ == block) return newest_;
  const at::Tensor& weights = softmax_->of(block).weights;
  at::Tensor of_weights = compute_products(block.of_queries(output_gradient_.rows.over_size),
                                           block.of_keys(heads_.value.over_size))
                              .mul_(output_gradient_.scale_inv * heads_.scale_inv);
  dropout_.apply(of_weights, block);
  at::Tensor delta = delta_.defined() ? block.of_queries(delta_)
                                      : (weights * of_weights).sum(-1, /*keepdim=*/true);
  newest_ = {of_weights.sub_(delta).mul_(weights), std::move(delta)};
  newest_block_ = block;
  return newest_;
}

void Fp8Gradients::add(const ScoreBlock& block) {
  const ScoreGradients& gradients = score_gradients(block);
  if (of_offset.defined()) {
    const at::Tensor own = block.of_scores(of_offset);
    own.sub_((softmax_->of(block).sink * gradients.delta).sum_to_size(own.sizes()));
  }
  const auto add_over_queries = [&](std::size_t input, const at::Tensor& x,
                                    const at::Tensor& rows) {
    block.of_keys(of_inputs[input]).add_(sum_over_queries(x, block.of_queries(rows), block.groups));
  };
  add_over_queries(2, weights_.decode(dropped_softmax(*softmax_, block, dropout_)),
                   output_gradient_.rows.over_positions);
  const at::Tensor of_scores = scores_.decode(gradients.of_scores);
  block.of_queries(of_inputs[0])
      .copy_(sum_over_keys(of_scores, block.of_keys(heads_.key.over_positions)));
  add_over_queries(1, of_scores, heads_.query.over_positions);
  if (of_bias.defined()) rules_.bias.add_gradient(of_bias, of_scores, block, rules_.mask);
}

void Fp8Gradients::compute() {
  const BlockedScores blocks =
      make_blocked_scores(heads_.query.over_size, heads_.key.over_size, rules_);
  if (scores_.needs_observation()) {
    for_score_blocks(blocks, [&](const ScoreBlock& block) {
      scores_.observe(score_gradients(block).of_scores);
    });
  }
  for_score_blocks(blocks, [&](const ScoreBlock& block) { add(block); });
  if (blocks.shape.scores() == 0) return;
  const at::Tensor factor = scores_.scale_inv() * heads_.scale_inv * rules_.scale;
  of_inputs[0].mul_(factor);
  of_inputs[1].mul_(factor);
  of_inputs[2].mul_(weights_.scale_inv() * output_gradient_.scale_inv);
  if (of_bias.defined()) of_bias.mul_(scores_.scale_inv());
}

variable_list compute_fp8_gradients(AutogradContext* context, const variable_list& gradients) {
  const auto holder = context->saved_data["fp8_attention"].toCapsule();
  const auto& kept = static_cast<const KeptFp8Attention&>(*holder);
  check_no_second_derivative(kept.fp8.name);
  const c10::impl::ExcludeDispatchKeyGuard no_torch_autocast(c10::autocast_dispatch_keyset);
  kept.rules.mask.check_unchanged();
  const variable_list saved = context->get_saved_variables();
  const at::AutoDispatchBelowADInplaceOrView below_autograd;
  Fp8Gradients made(kept, saved, gradients[0]);
  made.compute();
  ChunkedQuantizer cast(kept.fp8.quantizers.d_qkv);
  variable_list all = round_together(cast, made.of_inputs, kept.dtypes);
  if (cast.quantizes()) kept.fp8.scales.input_gradients->publish(cast.scale());
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
  return translating_errors([&] {
    const auto holder = context->saved_data["fp8_attention"].toCapsule();
    return naming_layer(static_cast<const KeptFp8Attention&>(*holder).fp8.name,
                        [&] { return compute_fp8_gradients(context, gradients); });
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

at::Tensor attend_in_fp8(const QueryKeyValueHeads& heads, const AttentionRules& rules,
                         const Fp8Attention& fp8) {
  check_dtype_for_fp8(heads.query, fp8);
  if (rules.choice) {
    *rules.choice = {.kernel = "FP8 attention by formulas",
                     .computed_in = at::kFloat,
                     .cast_to = get_name(fp8.quantizers.qkv->format()),
                     .cast_in = fp8.quantizers.qkv->mode()};
  }
  return Fp8AttentionFunction::apply(heads.query, heads.key, heads.value,
                                     if_defined(rules.bias.source()), rules.offset, &rules, &fp8);
}

// Attaches codes in the memory order of the output, quantized with the same scale: the same codes
// as before, except for values that were rounded as FP16 subnormals.
at::Tensor with_codes(const at::Tensor& output, const std::optional<Fp8Attention>& fp8) {
  if (!fp8 || !fp8->attaches_output) return output;
  const at::Tensor values = output.contiguous();
  const DelayedScalingQuantizer same_scale(fp8->quantizers.o->format(), fp8->scales.output->get(),
                                           at::Tensor());
  return attach_quantized(values, same_scale.quantize(values.detach().flatten(0, -2),
                                                      {.rowwise = true, .columnwise = false}));
}

QueryKeyValueHeads cast_heads(const QueryKeyValueHeads& heads, const Fp8Attention& fp8) {
  const at::NoGradGuard no_grad;
  const std::shared_ptr<Quantizer>& own = fp8.quantizers.qkv;
  const QueryKeyValueHeads plain{heads.query.detach(), heads.key.detach(), heads.value.detach()};
  if (casts_in_blocks(*own)) {
    const CodedHeads coded = make_forward_operands(cast_inputs(plain, own), *own);
    return {coded.query.over_size, coded.key.over_size, coded.value.over_positions};
  }
  const at::Tensor known = own->known_scale();
  ChunkedQuantizer cast(known.defined() ? own->frozen_at(known) : own);
  const std::vector<at::Tensor> made = round_together(cast, {plain.query, plain.key, plain.value},
                                                      std::vector<at::ScalarType>(3, at::kFloat));
  return {made[0], made[1], made[2]};
}

// ---- operands

namespace {

// FP32: no other dtype covers the range of block scales.
at::Tensor cast_over_size(const Quantizer& quantizer, const at::Tensor& x) {
  if (x.numel() == 0) return x.to(at::kFloat);
  QuantizedTensor quantized = quantizer.quantize(x, {.rowwise = true, .columnwise = false});
  quantized.dtype = at::kFloat;
  return quantized.dequantize();
}

at::Tensor cast_over_positions(const Quantizer& quantizer, const at::Tensor& x) {
  // One copy here saves a copy per block in the GEMM.
  return cast_over_size(quantizer, x.transpose(-1, -2)).transpose(-1, -2).contiguous();
}

CodedRows cast_both(const Quantizer& quantizer, const at::Tensor& x) {
  return {cast_over_size(quantizer, x), cast_over_positions(quantizer, x)};
}

CodedRows decode_rows(const at::Tensor& codes, FormatId format) {
  const at::Tensor values = decoded(codes, format);
  return {values, values};
}

CodedHeads decode_heads(const KeptInputs& inputs, FormatId format) {
  return {.query = decode_rows(inputs.query, format),
          .key = decode_rows(inputs.key, format),
          .value = decode_rows(inputs.value, format),
          .scale_inv = inputs.scale_inv};
}

at::Tensor make_no_scale(const at::Tensor& like) {
  return at::ones({1}, like.options().dtype(at::kFloat));
}

}  // namespace

KeptInputs cast_inputs(const QueryKeyValueHeads& heads, const std::shared_ptr<Quantizer>& qkv) {
  if (casts_in_blocks(*qkv)) return {heads.query, heads.key, heads.value, {}};
  ChunkedQuantizer cast(qkv);
  const std::vector<at::Tensor> codes =
      quantize_together(cast, {heads.query, heads.key, heads.value});
  return {codes[0], codes[1], codes[2], cast.scale_inv()};
}

CodedHeads make_forward_operands(const KeptInputs& inputs, const Quantizer& qkv) {
  if (!casts_in_blocks(qkv)) return decode_heads(inputs, qkv.format());
  return {.query = {.over_size = cast_over_size(qkv, inputs.query), .over_positions = {}},
          .key = {.over_size = cast_over_size(qkv, inputs.key), .over_positions = {}},
          .value = {.over_size = {}, .over_positions = cast_over_positions(qkv, inputs.value)},
          .scale_inv = make_no_scale(inputs.query)};
}

CodedHeads make_backward_operands(const KeptInputs& inputs, const Quantizer& qkv) {
  if (!casts_in_blocks(qkv)) return decode_heads(inputs, qkv.format());
  return {.query = cast_both(qkv, inputs.query),
          .key = cast_both(qkv, inputs.key),
          .value = {.over_size = cast_over_size(qkv, inputs.value), .over_positions = {}},
          .scale_inv = make_no_scale(inputs.query)};
}

CodedTensor cast_output_gradient(const at::Tensor& gradient,
                                 const std::shared_ptr<Quantizer>& d_o) {
  if (casts_in_blocks(*d_o)) return {cast_both(*d_o, gradient), make_no_scale(gradient)};
  ChunkedQuantizer cast(d_o);
  const at::Tensor values = cast.decode(gradient);
  return {{values, values}, cast.scale_inv()};
}

at::Tensor get_kept_output(const at::Tensor& kept, const at::Tensor& scale_inv,
                           const AttentionQuantizers& quantizers) {
  if (!scale_inv.defined()) return kept.to(at::kFloat);
  return ops::dequantize_fp8(kept, scale_inv, quantizers.o->format(), at::kFloat);
}

at::Tensor decoded(const at::Tensor& codes, FormatId format) {
  return ops::decode_fp8(codes, format, at::kFloat);
}

}  // namespace telens
