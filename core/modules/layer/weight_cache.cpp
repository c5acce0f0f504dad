// The operands of a weight that the first micro-batch leaves for the others: when they serve.
#include <utility>

#include "core/modules/layer/gemm_operands.h"

namespace telens {
namespace {

// A cached operand is filled at the next update, so it must not be the weight itself, which a
// feature may have returned unchanged.
GemmOperands clone_if_aliases(GemmOperands operands, const at::Tensor& weight) {
  for (Operand* operand : {&operands.first, &operands.second}) {
    auto* plain = std::get_if<at::Tensor>(operand);
    if (plain != nullptr && plain->defined() && plain->is_alias_of(weight)) *plain = plain->clone();
  }
  return operands;
}

// True if a plain operand of dgrad is what fprop's codes stand for, not the weight.
bool dequantizes(const ForwardContext& context) {
  return context.recipe != nullptr && context.recipe->dequantized_backward;
}

}  // namespace

std::uint32_t weight_modify_mask(const ForwardContext& context) {
  if (!context.plan) return 0;
  const auto [first, second] = get_gemms(TensorName::weight);
  return context.plan->modify & (RoutingPlan::get_bit(first, TensorName::weight) |
                                 RoutingPlan::get_bit(second, TensorName::weight));
}

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
  const auto [first, second] = get_gemms(TensorName::weight);
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

}  // namespace telens
