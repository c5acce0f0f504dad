// Describes the calls of core/hook_points.h without LibTorch's types.
#include "hooks/observation.h"

#include "core/hook_points.h"
#include "core/ops/attention.h"
#include "core/quantization/current_scaling.h"
#include "core/quantization/delayed_scaling.h"
#include "core/quantization/quantized_tensor.h"
#include "core/quantization/recipe.h"
#include "core/torch_compat.h"
#include "hooks/libtorch/c10d_group.h"

namespace telens {
namespace {

const Operand& get_operand(const void* source) { return *static_cast<const Operand*>(source); }

const QuantizedTensor& get_quantized(const void* source) {
  return std::get<QuantizedTensor>(get_operand(source));
}

std::optional<ObservedQuantizer> observe(const Quantizer* quantizer) {
  if (quantizer == nullptr) return std::nullopt;
  return ObservedQuantizer{.mode = quantizer->mode(),
                           .format = quantizer->format(),
                           .history_updates = quantizer->history_updates(),
                           .source = quantizer};
}

std::optional<ObservedRecipe> observe(const Recipe* recipe) {
  if (recipe == nullptr) return std::nullopt;
  const Recipe::OverrideLinearPrecision& overridden = recipe->override_linear_precision;
  return ObservedRecipe{.name = recipe->name(),
                        .overridden = {overridden.fprop, overridden.dgrad, overridden.wgrad},
                        .dequantized_backward = recipe->dequantized_backward};
}

// Returns an undefined handle for nullptr.
TensorHandle handle_or_empty(const at::Tensor* tensor) {
  return tensor == nullptr ? TensorHandle() : TensorHandle(*tensor);
}

}  // namespace

ObservedOperand ObservedOperand::from(const void* operand) {
  ObservedOperand seen;
  seen.source_ = operand;
  if (operand == nullptr) return seen;
  const auto* quantized = std::get_if<QuantizedTensor>(&get_operand(operand));
  if (quantized == nullptr) return seen;
  seen.is_quantized_ = true;
  seen.has_rowwise_ = quantized->rowwise.defined();
  seen.has_columnwise_ = quantized->columnwise.defined();
  seen.format_ = quantized->format;
  seen.mode_ = quantized->mode;
  seen.sizes_ = quantized->sizes;
  return seen;
}

TensorHandle ObservedOperand::plain() const { return std::get<at::Tensor>(get_operand(source_)); }

QuantizedCodes ObservedOperand::codes(bool columnwise) const {
  const QuantizedTensor& quantized = get_quantized(source_);
  const QuantizedData& data = columnwise ? quantized.columnwise : quantized.rowwise;
  return {data.codes, data.scale_inv, data.tensor_scale};
}

const BlockOptions& ObservedOperand::blocks() const { return get_quantized(source_).blocks; }

TensorHandle ObservedOperand::dequantize() const { return get_quantized(source_).dequantize(); }

TensorHandle ObservedOperand::data() const {
  if (!is_quantized_) return plain();
  return codes(/*columnwise=*/!has_rowwise_).codes;
}

TensorHandle ObservedQuantizer::known_scale() const { return source->known_scale(); }

RankGroupPtr ObservedQuantizer::amax_group() const {
  return to_rank_group(source->amax_reduction_group().get());
}

bool ObservedQuantizer::uses_current_scaling() const {
  return dynamic_cast<const CurrentScalingQuantizer*>(source) != nullptr;
}

TensorHandle ObservedQuantizer::scale_for(const TensorHandle& x) const {
  return dynamic_cast<const CurrentScalingQuantizer&>(*source).scale_for(to_torch(x));
}

ObservedTensor::ObservedTensor(const InspectTensorCall& call)
    : tensor_name(call.tensor_name),
      tensor(handle_or_empty(call.tensor)),
      rowwise(ObservedOperand::from(call.rowwise)),
      columnwise(ObservedOperand::from(call.columnwise)),
      quantizer(observe(call.quantizer)),
      parallel_size(call.tensor_parallel.size),
      first_microbatch(call.first_microbatch),
      recipe(observe(call.recipe)),
      bias(handle_or_empty(call.bias)),
      rowwise_modified(call.rowwise_modified),
      columnwise_modified(call.columnwise_modified),
      evaluation(call.evaluation),
      replicated(call.replicated),
      summed(call.summed),
      first_row(call.first_row),
      scores(call.scores),
      source(&call) {
  if (parallel_size > 1) parallel_group = to_rank_group(call.tensor_parallel.group);
  if (call.delayed != nullptr) {
    delayed = ObservedDelayedScaling{call.delayed->margin, call.delayed->reduce_amax};
    follows_delayed = call.follows_delayed();
  }
}

TensorHandle ObservedTensor::data() const {
  if (scores != nullptr) return scores->query;
  if (tensor.defined()) return tensor;
  return rowwise.defined() ? rowwise.data() : columnwise.data();
}

ObservedCopy::ObservedCopy(const InspectPostquantizeCall& call)
    : gemm(call.gemm),
      tensor_name(call.tensor_name),
      tensor(ObservedOperand::from(&call.tensor)),
      rowwise(call.rowwise),
      source(&call) {}

ObservedGemm::ObservedGemm(const InspectGemmCall& call)
    : gemm(call.gemm),
      a_name(call.a_name),
      b_name(call.b_name),
      a(ObservedOperand::from(&call.a)),
      b(ObservedOperand::from(&call.b)),
      bias(call.bias),
      output(call.output),
      recipe(observe(call.recipe)),
      a_quantizer(observe(call.a_quantizer)),
      b_quantizer(observe(call.b_quantizer)),
      split_accumulator(call.split_accumulator),
      kernel(call.choice.kernel),
      kernel_reason(call.choice.reason),
      overlap(call.overlap),
      source(&call) {}

ObservedPadding ObservedGemm::padding() const {
  if (!a.is_quantized()) return {};
  const TokenPadding padding = token_padding(gemm, get_quantized(a.source()));
  return {padding.tokens, padding.padded, padding.multiple};
}

ObservedAttention::ObservedAttention(const InspectAttentionCall& call)
    : query(call.query),
      kernel(call.choice.kernel),
      reason(call.choice.reason),
      computed_in(telens::to_handle(call.choice.computed_in)),
      widened_by(call.choice.widened_by),
      cast_to(call.choice.cast_to),
      cast_in(call.choice.cast_in),
      source(&call) {}

}  // namespace telens
