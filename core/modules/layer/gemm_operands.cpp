#include "core/modules/layer/gemm_operands.h"

#include <torch/csrc/autograd/variable.h>

#include <utility>

#include "core/modules/shared/recomputation.h"
#include "core/ops/quantize.h"
#include "core/quantization/role_of.h"

namespace telens {
namespace {

// Autograd notices in-place updates by the version counter, which operators below autograd leave.
void bump_version(const at::Tensor& tensor) {
  if (tensor.defined() && !tensor.is_inference()) {
    tensor.unsafeGetTensorImpl()->bump_version();
  }
}

void bump_versions(const Operand& updated) {
  if (const auto* quantized = std::get_if<QuantizedTensor>(&updated)) {
    for (const QuantizedData* data : {&quantized->rowwise, &quantized->columnwise}) {
      bump_version(data->codes);
      bump_version(data->scale_inv);
    }
  } else {
    bump_version(std::get<at::Tensor>(updated));
  }
}

// Builds the operands of one tensor, with the calls of the routing plan if there is one.
class OperandBuilder {
 public:
  // cached: operands of an earlier value of the tensor, of the same kinds. They are filled in place
  // and come back as the result; a backward that still needs the old values will notice. nullptr:
  // none.
  OperandBuilder(GemmLayer& layer, const ForwardContext& context, const OperandRequest& request,
                 const GemmOperands* cached = nullptr)
      : layer_(layer),
        context_(context),
        request_(request),
        gemms_(gemms_of(request.tensor_name)),
        quantizer_(context.quantizer(role_of(request.tensor_name))),
        cached_(cached) {}

  GemmOperands build() const {
    return context_.plan ? quantize_with_hooks() : quantize(wants_first(), wants_second(), cached_);
  }

  // Replaces the operands that the plan lets features modify.
  void modify(GemmOperands& operands) const;

  // The calls that only look. first_microbatch: false where cached operands are used again.
  void inspect(const GemmOperands& operands, bool first_microbatch = true) const;

 private:
  bool wants_first() const { return request_.first_needed && context_.quantizes(gemms_.first); }
  bool wants_second() const { return request_.second_needed && context_.quantizes(gemms_.second); }
  bool modifies(Gemm gemm) const { return context_.plan->modifies(gemm, request_.tensor_name); }

  GemmOperands quantize(bool first, bool second, const GemmOperands* cached) const;
  at::Tensor plain_second(const QuantizedTensor& first) const;
  GemmOperands quantize_with_hooks() const;
  void modify_for(Gemm gemm, Operand& operand, const Operand* cached, HookListener& listener) const;
  void inspect_postquantize(Gemm gemm, const Operand& operand, bool rowwise,
                            HookListener& listener) const;

  GemmLayer& layer_;
  const ForwardContext& context_;
  const OperandRequest& request_;
  GemmsOfTensor gemms_;
  Quantizer* quantizer_;
  const GemmOperands* cached_;
};

GemmOperands OperandBuilder::quantize(bool first, bool second, const GemmOperands* cached) const {
  if (!first && !second) return {request_.tensor, request_.tensor};
  QuantizedTensor quantized;
  if (cached == nullptr) {
    quantized = quantizer_->quantize(request_.tensor, {.rowwise = first, .columnwise = second});
  } else {
    quantized = std::get<QuantizedTensor>(first ? cached->first : cached->second);
    quantizer_->quantize_into(request_.tensor, quantized);
    bump_versions(quantized);
  }
  return {first ? Operand(quantized) : Operand(request_.tensor),
          second ? Operand(quantized) : Operand(plain_second(quantized))};
}

// The tensor of a second GEMM in high precision, with the operand of the first. Undefined: a cache
// that was made without it must not serve the next one.
at::Tensor OperandBuilder::plain_second(const QuantizedTensor& first) const {
  if (!context_.recipe->dequantized_backward || gemms_.first != Gemm::fprop) return request_.tensor;
  return request_.second_needed ? first.dequantize().to(request_.dtype) : at::Tensor();
}

GemmOperands OperandBuilder::quantize_with_hooks() const {
  const hook_points::ListenerCall listener(*context_.plan);
  if (!listener) return quantize(wants_first(), wants_second(), nullptr);  // the session has ended
  const auto stays_quantized = [&](Gemm gemm, bool wanted) {
    return wanted && !modifies(gemm) && !context_.plan->runs_in_high_precision(gemm);
  };
  GemmOperands operands = quantize(stays_quantized(gemms_.first, wants_first()),
                                   stays_quantized(gemms_.second, wants_second()), cached_);
  modify(operands);
  inspect(operands);
  return operands;
}

void OperandBuilder::modify(GemmOperands& operands) const {
  const hook_points::ListenerCall listener(*context_.plan);
  if (!listener) return;
  if (request_.second_needed && modifies(gemms_.second)) {
    modify_for(gemms_.second, operands.second, cached_ ? &cached_->second : nullptr, *listener);
  }
  if (modifies(gemms_.first)) {
    modify_for(gemms_.first, operands.first, cached_ ? &cached_->first : nullptr, *listener);
  }
}

void OperandBuilder::modify_for(Gemm gemm, Operand& operand, const Operand* cached,
                                HookListener& listener) const {
  ModifyTensorCall call{.gemm = gemm,
                        .tensor_name = request_.tensor_name,
                        .tensor = request_.tensor,
                        .default_quantizer = quantizer_,
                        .dtype = request_.dtype};
  if (cached == nullptr) {
    operand = listener.modify_tensor(layer_.hooks, *context_.plan, call);
    return;
  }
  operand = *cached;
  call.out = &operand;
  listener.modify_tensor(layer_.hooks, *context_.plan, call);
  bump_versions(operand);
}

void OperandBuilder::inspect(const GemmOperands& operands, bool first_microbatch) const {
  if (context_.recomputation) return;
  const hook_points::ListenerCall listener(*context_.plan);
  if (!listener) return;
  const bool second_needed = request_.second_needed;
  if (context_.plan->inspects(request_.tensor_name)) {
    listener->inspect_tensor(
        layer_.hooks, *context_.plan,
        {.tensor_name = request_.tensor_name,
         .tensor = request_.tensor.defined() ? &request_.tensor : nullptr,
         .rowwise = &operands.first,
         .columnwise = second_needed ? &operands.second : &operands.first,
         .quantizer = quantizer_,
         .tensor_parallel = layer_.hooks.tensor_parallel(),
         .first_microbatch = first_microbatch,
         .recipe = context_.recipe.get(),
         .rowwise_modified = modifies(gemms_.first),
         .columnwise_modified = modifies(second_needed ? gemms_.second : gemms_.first),
         .replicated = request_.gathered || layer_.parallel.replicates(request_.tensor_name)});
  }
  inspect_postquantize(gemms_.first, operands.first, /*rowwise=*/true, *listener);
  if (second_needed) {
    inspect_postquantize(gemms_.second, operands.second, /*rowwise=*/false, *listener);
  }
}

void OperandBuilder::inspect_postquantize(Gemm gemm, const Operand& operand, bool rowwise,
                                          HookListener& listener) const {
  const bool cast_or_modified = is_quantized(operand) || modifies(gemm);
  if (!cast_or_modified || !context_.plan->inspects_quantized(gemm, request_.tensor_name)) return;
  listener.inspect_tensor_postquantize(layer_.hooks, *context_.plan,
                                       {.gemm = gemm,
                                        .tensor_name = request_.tensor_name,
                                        .tensor = operand,
                                        .rowwise = rowwise,
                                        .tensor_parallel = layer_.hooks.tensor_parallel()});
}

GemmOperands build_operands(GemmLayer& layer, const ForwardContext& context,
                            const OperandRequest& request, const GemmOperands* cached) {
  if (context.calibrating) {
    const auto& quantizer = context.quantizers[role_of(request.tensor_name)];
    if (quantizer) quantizer->calibrate(request.tensor);
  }
  return OperandBuilder(layer, context, request, cached).build();
}

// ---- weights

// The bits of RoutingPlan::modify for the weight.
std::uint32_t weight_modify_mask(const ForwardContext& context) {
  if (!context.plan) return 0;
  const auto [first, second] = gemms_of(TensorName::weight);
  return context.plan->modify & (RoutingPlan::bit_of(first, TensorName::weight) |
                                 RoutingPlan::bit_of(second, TensorName::weight));
}

// A cached operand is filled at the next update, so it must not be the weight itself, which a
// feature may have returned unchanged.
GemmOperands clone_if_aliases(GemmOperands operands, const at::Tensor& weight) {
  for (Operand* operand : {&operands.first, &operands.second}) {
    auto* plain = std::get_if<at::Tensor>(operand);
    if (plain != nullptr && plain->defined() && plain->is_alias_of(weight)) *plain = plain->clone();
  }
  return operands;
}

// A stored weight that was made where no gradients are asked for has no copy for dgrad. Under one
// scale it is the same codes, transposed; blocks would need the values, which are gone.
QuantizedTensor with_columnwise(const std::string& layer, const QuantizedTensor& stored) {
  if (stored.columnwise.defined()) return stored;
  if (stored.mode != ScalingMode::tensor) {
    raise<UsageError>(
        "{}: its weight is stored in {} scaling and was made without gradients, so it has no "
        "columnwise copy for dgrad; make the module outside of torch.no_grad() and "
        "torch.inference_mode() to train it",
        layer, name_of(stored.mode));
  }
  QuantizedTensor both = stored;
  both.columnwise = {ops::transpose_codes(stored.rowwise.codes), stored.rowwise.scale_inv};
  return both;
}

// The operands of a weight stored in low precision: its codes under FP8, its values elsewhere.
GemmOperands stored_weight_operand(GemmLayer& layer, const ForwardContext& context,
                                   const QuantizedTensor& stored, const OperandRequest& request) {
  const auto operand = [&](Gemm gemm) -> Operand {
    const bool high_precision =
        !context.quantizes(gemm) || (context.plan && context.plan->runs_in_high_precision(gemm));
    if (high_precision) return stored.dequantize().to(request.dtype);
    return gemm == Gemm::dgrad ? with_columnwise(layer.name(), stored) : stored;
  };
  const auto [first, second] = gemms_of(TensorName::weight);
  GemmOperands operands{operand(first), at::Tensor()};
  if (request.second_needed) operands.second = operand(second);
  if (!context.plan) return operands;
  OperandRequest values = request;
  if (weight_modify_mask(context) != 0) {
    values.tensor = stored.dequantize().to(request.dtype);
    OperandBuilder(layer, context, values).modify(operands);
  }
  values.tensor = at::Tensor();  // a stored weight has no original to inspect
  OperandBuilder(layer, context, values).inspect(operands);
  return operands;
}

// A cache must serve micro-batches that need a gradient even if this one does not: a validation
// between them, or the first forward of a checkpoint. In inference no forward has asked for a
// gradient yet, and a second copy would waste memory; a micro-batch that does ask makes both anew.
bool caches_second(const WeightCache& cache, const OperandRequest& request) {
  return request.second_needed || recomputation::is_active() || cache.has_quantized_second();
}

// True if a plain operand of dgrad is what fprop's codes stand for, not the weight.
bool dequantizes(const ForwardContext& context) {
  return context.recipe != nullptr && context.recipe->dequantized_backward;
}

}  // namespace

bool WeightCache::is_valid_for(const ForwardContext& context, const OperandRequest& request) const {
  if (!operands_ || modify_mask_ != weight_modify_mask(context)) return false;
  const auto fits = [&](Gemm gemm, const Operand& cached) {
    if (context.plan && context.plan->modifies(gemm, TensorName::weight)) {
      return recipe_ == context.recipe;  // the feature decided when it was asked first
    }
    const bool quantizes =
        context.quantizes(gemm) && !(context.plan && context.plan->runs_in_high_precision(gemm));
    const auto* codes = std::get_if<QuantizedTensor>(&cached);
    if (codes == nullptr) {
      return !quantizes && std::get<at::Tensor>(cached).defined() &&
             dequantized_ == dequantizes(context);
    }
    if (!quantizes) return false;
    return quantizer_ && quantizer_->quantizes_as(*context.quantizers[TensorRole::weight]) &&
           request.tensor.sizes() == at::IntArrayRef(codes->sizes);
  };
  const auto [first, second] = gemms_of(TensorName::weight);
  return fits(first, operands_->first) &&
         (!request.second_needed || fits(second, operands_->second));
}

void WeightCache::store(const GemmOperands& operands, const ForwardContext& context,
                        const at::Tensor& weight) {
  quantizer_ = context.quantizes() ? context.quantizers[TensorRole::weight] : nullptr;
  modify_mask_ = weight_modify_mask(context);
  recipe_ = context.recipe;
  dequantized_ = dequantizes(context);
  const bool any_quantized = is_quantized(operands.first) || is_quantized(operands.second);
  if (modify_mask_ != 0) {
    operands_ = clone_if_aliases(operands, weight);
  } else if (any_quantized || context.plan) {
    operands_ = operands;
  } else {
    operands_.reset();
  }
}

GemmOperands quantize_operand(GemmLayer& layer, const ForwardContext& context,
                              const OperandRequest& request) {
  return build_operands(layer, context, request, nullptr);
}

GemmOperands weight_operand(GemmLayer& layer, const ForwardContext& context, const Weight& weight,
                            std::optional<bool> is_first_microbatch,
                            const OperandRequest& request) {
  if (weight.quantized) return stored_weight_operand(layer, context, *weight.quantized, request);
  if (!is_first_microbatch.has_value()) return quantize_operand(layer, context, request);
  if (*is_first_microbatch && context.recomputation) {
    // The cache may by now hold a later minibatch's weight. The scales are those of the first
    // forward, so the bits are too.
    return quantize_operand(layer, context, request);
  }
  WeightCache& cache = layer.weight_cache;
  if (!*is_first_microbatch && cache.is_valid_for(context, request)) {
    if (context.plan) {
      OperandBuilder(layer, context, request).inspect(cache.operands(), /*first_microbatch=*/false);
    }
    return cache.operands();
  }
  OperandRequest both = request;
  both.second_needed = caches_second(cache, request);
  const GemmOperands* cached = cache.is_valid_for(context, both) ? &cache.operands() : nullptr;
  GemmOperands operands = build_operands(layer, context, both, cached);
  cache.store(operands, context, request.tensor);
  return operands;
}

SavedOperand::SavedOperand(const Operand& operand, std::vector<at::Tensor>& saved)
    : index_(saved.size()) {
  const auto* quantized = std::get_if<QuantizedTensor>(&operand);
  if (quantized == nullptr) {
    saved.push_back(std::get<at::Tensor>(operand));
    return;
  }
  saved.push_back(quantized->columnwise.codes);
  saved.push_back(quantized->columnwise.scale_inv);
  has_tensor_scale_ = quantized->columnwise.tensor_scale.defined();
  if (has_tensor_scale_) saved.push_back(quantized->columnwise.tensor_scale);
  quantized_ = *quantized;
  quantized_->rowwise = {};
  quantized_->columnwise = {};
}

Operand SavedOperand::restore(const std::vector<at::Tensor>& saved) const {
  if (!quantized_) return saved[index_];
  QuantizedTensor quantized = *quantized_;
  quantized.columnwise = {saved[index_], saved[index_ + 1],
                          has_tensor_scale_ ? saved[index_ + 2] : at::Tensor()};
  return quantized;
}

at::Tensor as_matrix(const at::Tensor& tensor) {
  const std::int64_t columns = tensor.size(-1);
  if (tensor.dim() == 2) return tensor;
  at::Tensor matrix = tensor.reshape({columns == 0 ? 0 : tensor.numel() / columns, columns});
  // A view that is made below autograd counts versions by itself.
  if (matrix.is_alias_of(tensor)) {
    torch::autograd::impl::set_version_counter(matrix,
                                               torch::autograd::impl::version_counter(tensor));
  }
  return matrix;
}

}  // namespace telens
