#include "core/modules/attention/fp8_attention.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>
#include <fmt/ranges.h>
#include <torch/csrc/autograd/custom_function.h>

#include <utility>
#include <vector>

#include "core/modules/attention/fp8_softmax.h"
#include "core/modules/attention/score_dropout.h"
#include "core/modules/shared/backward_errors.h"
#include "core/modules/shared/named_errors.h"
#include "core/modules/shared/second_derivative.h"
#include "core/ops/device_traits.h"
#include "core/ops/optional_tensor.h"
#include "core/ops/quantize.h"
#include "core/quantization/parted_cast.h"

namespace telens {
namespace {

using ops::if_defined;
using ops::or_undefined;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// Everything that the backward needs besides the tensors that autograd keeps.
struct KeptFp8Attention final : torch::CustomClassHolder {
  AttentionRules rules;
  ScoreDropout dropout;
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
  kBias,
  kOffset,
  kChoices
};

// The softmax as V meets it, before its cast.
at::Tensor dropped_softmax(Fp8Softmax& softmax, const ScoreBlock& block,
                           const ScoreDropout& dropout) {
  const at::Tensor& weights = softmax.of(block).weights;
  if (dropout.probability() == 0) return weights;
  const at::Tensor dropped = weights.clone(at::MemoryFormat::Contiguous);
  dropout.apply(dropped, block);
  return dropped;
}

// Small ones are drawn as they ever were.
ScoreDropout make_dropout(const at::Tensor& query, const at::Tensor& key, double probability) {
  const ScoreShape shape = score_shape(query, key);
  return ops::is_on_host(query) && shape.scores() > block_limits().most_whole
             ? ScoreDropout::seeded(probability)
             : ScoreDropout::drawn(shape, query, probability);
}

BlockedScores get_blocks(const CodedHeads& heads, const AttentionRules& rules) {
  return {.shape = score_shape(heads.query, heads.key),
          .scores_of_block = scores_of_block(heads.query),
          .keys = [&rules](const ScoreBlock& block) { return rules.mask.keys(block); }};
}

bool has_scores(const at::Tensor& query, const at::Tensor& key) {
  return query.numel() != 0 && key.numel() != 0;
}

// softmax(P) V, whose scales are multiplied in at the end. FP32.
at::Tensor attend_to_codes(const CodedHeads& heads, const AttentionRules& rules, PartedCast& cast,
                           const ScoreDropout& dropout) {
  Fp8Softmax softmax(heads, rules);
  const BlockedScores blocks = get_blocks(heads, rules);
  if (cast.looks_first()) {
    for_score_blocks(blocks, [&](const ScoreBlock& block) {
      cast.look(dropped_softmax(softmax, block, dropout));
    });
  }
  at::Tensor output = at::zeros(
      {heads.query.size(0), heads.query.size(1), heads.query.size(2), heads.value.size(3)},
      heads.query.options());
  for_score_blocks(blocks, [&](const ScoreBlock& block) {
    const at::Tensor weights =
        decoded(cast.codes(dropped_softmax(softmax, block, dropout)), cast.format());
    block.of_queries(output).copy_(groups_by_head(
        at::matmul(heads_by_group(weights, block.groups), block.of_keys(heads.value)),
        block.heads()));
  });
  return output.mul_(cast.scale_inv() * heads.scale_inv);
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

  PartedCast qkv(fp8->quantizers.qkv);
  const std::vector<at::Tensor> codes = cast_together(qkv, {query, key, value});
  const CodedHeads heads{.query = decoded(codes[0], qkv.format()),
                         .key = decoded(codes[1], qkv.format()),
                         .value = decoded(codes[2], qkv.format()),
                         .scale_inv = qkv.scale_inv()};
  PartedCast s(fp8->quantizers.s);
  const at::Tensor attended =
      has_scores(query, key)
          ? attend_to_codes(heads, *rules, s, kept->dropout)
          : at::zeros({query.size(0), query.size(1), query.size(2), value.size(3)},
                      heads.query.options());
  PartedCast o(fp8->quantizers.o);
  const at::Tensor output_codes = o.codes(attended);
  const at::Tensor output =
      ops::dequantize_fp8(output_codes, o.scale_inv(), o.format(), query.scalar_type());
  fp8->casts.output->hand(o.scale());
  context->save_for_backward({codes[0], codes[1], codes[2], qkv.scale_inv(), s.scale(),
                              or_undefined(bias), or_undefined(offset), kept->dropout.choices()});
  kept->dropout.set_choices({});
  context->saved_data["fp8_attention"] = c10::IValue::make_capsule(std::move(kept));
  return output;
}

// One backward: the scores anew, and the gradients of a block at a time.
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

  const ScoreGradients& score_gradients(const ScoreBlock& block);
  void add(const ScoreBlock& block);

  const KeptFp8Attention& kept_;
  const variable_list& saved_;
  AttentionRules rules_;
  ScoreDropout dropout_;
  CodedHeads heads_;
  at::Tensor output_gradient_;  // values of codes
  at::Tensor output_scale_inv_;
  PartedCast scores_;
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
      scores_(kept.fp8.quantizers.d_p) {
  dropout_.set_choices(saved[kChoices]);
  const FormatId format = kept.fp8.quantizers.qkv->format();
  heads_ = {.query = decoded(saved[kQueryCodes], format),
            .key = decoded(saved[kKeyCodes], format),
            .value = decoded(saved[kValueCodes], format),
            .scale_inv = saved[kCodesScaleInv]};
  PartedCast cast(kept.fp8.quantizers.d_o);
  output_gradient_ = decoded(cast.codes(output_gradient), cast.format());
  output_scale_inv_ = cast.scale_inv();
  softmax_.emplace(heads_, rules_);
  of_inputs = {at::zeros_like(heads_.query), at::zeros_like(heads_.key),
               at::zeros_like(heads_.value)};
  if (rules_.bias && saved[kBias].requires_grad()) {
    of_bias = at::zeros_like(saved[kBias], heads_.query.options());
  }
  if (rules_.offset) of_offset = at::zeros_like(saved[kOffset], heads_.query.options());
}

const Fp8Gradients::ScoreGradients& Fp8Gradients::score_gradients(const ScoreBlock& block) {
  if (newest_block_ == block) return newest_;
  const at::Tensor& weights = softmax_->of(block).weights;
  at::Tensor of_weights =
      compute_products(block, block.of_queries(output_gradient_), block.of_keys(heads_.value))
          .mul_(output_scale_inv_ * heads_.scale_inv);
  dropout_.apply(of_weights, block);
  at::Tensor delta = (weights * of_weights).sum(-1, /*keepdim=*/true);
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
  const FormatId format = kept_.fp8.quantizers.s->format();
  const at::Tensor weights = decoded(ops::quantize_fp8(dropped_softmax(*softmax_, block, dropout_),
                                                       saved_[kSoftmaxScale], std::nullopt, format),
                                     format);
  const auto by_key = [&](const at::Tensor& x, const at::Tensor& rows) {
    return at::matmul(heads_by_group(x, block.groups).transpose(-1, -2),
                      heads_by_group(block.of_queries(rows), block.groups));
  };
  block.of_keys(of_inputs[2]).add_(by_key(weights, output_gradient_));
  const at::Tensor of_scores = decoded(scores_.codes(gradients.of_scores), scores_.format());
  block.of_queries(of_inputs[0])
      .copy_(groups_by_head(
          at::matmul(heads_by_group(of_scores, block.groups), block.of_keys(heads_.key)),
          block.heads()));
  block.of_keys(of_inputs[1]).add_(by_key(of_scores, heads_.query));
  if (of_bias.defined()) rules_.bias.add_gradient(of_bias, of_scores, block, rules_.mask);
}

void Fp8Gradients::compute() {
  const BlockedScores blocks = get_blocks(heads_, rules_);
  if (scores_.looks_first()) {
    for_score_blocks(
        blocks, [&](const ScoreBlock& block) { scores_.look(score_gradients(block).of_scores); });
  }
  for_score_blocks(blocks, [&](const ScoreBlock& block) { add(block); });
  if (blocks.shape.scores() == 0) return;
  const at::Tensor factor = scores_.scale_inv() * heads_.scale_inv * rules_.scale;
  of_inputs[0].mul_(factor);
  of_inputs[1].mul_(factor);
  of_inputs[2].mul_(saved_[kSoftmaxScale].reciprocal() * output_scale_inv_);
  if (of_bias.defined()) of_bias.mul_(scores_.scale_inv());
}

variable_list compute_fp8_gradients(AutogradContext* context, const variable_list& gradients) {
  const auto holder = context->saved_data["fp8_attention"].toCapsule();
  const auto& kept = static_cast<const KeptFp8Attention&>(*holder);
  refuse_second_derivative(kept.fp8.name);
  const c10::impl::ExcludeDispatchKeyGuard no_torch_autocast(c10::autocast_dispatch_keyset);
  kept.rules.mask.check_unchanged();
  const variable_list saved = context->get_saved_variables();
  const at::AutoDispatchBelowADInplaceOrView below_autograd;
  Fp8Gradients made(kept, saved, gradients[0]);
  made.compute();
  PartedCast cast(kept.fp8.quantizers.d_qkv);
  const std::vector<at::Tensor> codes = cast_together(cast, made.of_inputs);
  kept.fp8.casts.input_gradients->hand(cast.scale());
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
                        [&] { return compute_fp8_gradients(context, gradients); });
  });
}

}  // namespace

at::Tensor decoded(const at::Tensor& codes, FormatId format) {
  return ops::decode_fp8(codes, format, at::kFloat);
}

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
                     .cast_to = get_name(fp8.quantizers.qkv->format())};
  }
  return Fp8AttentionFunction::apply(heads.query, heads.key, heads.value,
                                     if_defined(rules.bias.source()), rules.offset, &rules, &fp8);
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
