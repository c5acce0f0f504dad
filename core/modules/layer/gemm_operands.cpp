#include "core/modules/layer/gemm_operands.h"

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/cat.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>
#include <utility>

#include "core/modules/shared/recomputation.h"
#include "core/ops/quantize.h"
#include "core/ops/torch_internals.h"
#include "core/quantization/quantized_payload.h"
#include "core/quantization/quantized_tensor.h"
#include "core/quantization/recipe.h"

namespace telens {
namespace {

void bump_versions(const Operand& updated) {
  if (const auto* quantized = std::get_if<QuantizedTensor>(&updated)) {
    bump_version(*quantized);
  } else {
    bump_version(std::get<at::Tensor>(updated));
  }
}

// Builds the operands of a tensor, with the calls of the routing plan if there is one.
class OperandBuilder {
 public:
  // cached: see quantize_operand().
  OperandBuilder(GemmLayer& layer, const ForwardContext& context, const OperandRequest& request,
                 const GemmOperands* cached = nullptr)
      : layer_(layer),
        context_(context),
        request_(request),
        gemms_(get_gemms(request.tensor_name)),
        quantizer_(context.quantizer(get_role(request.tensor_name))),
        cached_(cached),
        values_(request.tensor) {}

  GemmOperands build() const;

  // Replaces the operands that the plan lets features modify.
  void modify(GemmOperands& operands) const;

  // Calls inspect_tensor and inspect_tensor_postquantize. first_microbatch: false if cached
  // operands are reused.
  void inspect(const GemmOperands& operands, bool first_microbatch = true) const;

 private:
  bool wants_first() const { return request_.first_needed && context_.quantizes(gemms_.first); }
  bool wants_second() const { return request_.second_needed && context_.quantizes(gemms_.second); }
  std::optional<std::int64_t> first_row() const;
  bool modifies(Gemm gemm) const { return context_.plan->modifies(gemm, request_.tensor_name); }

  GemmOperands quantize(bool first, bool second, const GemmOperands* cached) const;
  QuantizedTensor complete_codes(bool first, bool second) const;
  const at::Tensor& values() const;
  at::Tensor plain_second(const QuantizedTensor& first) const;
  void modify_for(Gemm gemm, Operand& operand, const Operand* cached, HookListener& listener) const;
  void inspect_postquantize(Gemm gemm, const Operand& operand, bool rowwise,
                            HookListener& listener) const;

  GemmLayer& layer_;
  const ForwardContext& context_;
  const OperandRequest& request_;
  GemmsOfTensor gemms_;
  Quantizer* quantizer_;
  const GemmOperands* cached_;
  mutable at::Tensor values_;  // dequantized on demand
};

// Returns the tensor in high precision; undefined for a weight that is stored quantized.
const at::Tensor& OperandBuilder::values() const {
  if (!values_.defined() && request_.codes != nullptr) values_ = request_.codes->dequantize();
  return values_;
}

// Adds missing orientations: transposed codes for per-tensor scaling; blocks are quantized from the
// values.
QuantizedTensor OperandBuilder::complete_codes(bool first, bool second) const {
  QuantizedTensor codes = *request_.codes;
  const auto complete = [&](QuantizedData& missing, const QuantizedData& there, Usage usage) {
    if (missing.defined()) return;
    if (codes.mode == ScalingMode::tensor) {
      missing = {ops::transpose_codes(there.codes), there.scale_inv};
      return;
    }
    const QuantizedTensor made = quantizer_->quantize(values(), usage);
    missing = usage.rowwise ? made.rowwise : made.columnwise;
  };
  if (first) complete(codes.rowwise, codes.columnwise, {.rowwise = true, .columnwise = false});
  if (second) complete(codes.columnwise, codes.rowwise, {.rowwise = false, .columnwise = true});
  return codes;
}

GemmOperands OperandBuilder::quantize(bool first, bool second, const GemmOperands* cached) const {
  if (!first && !second) return {values(), values()};
  QuantizedTensor quantized;
  if (request_.codes != nullptr) {
    quantized = complete_codes(first, second);
  } else if (cached == nullptr) {
    quantized = quantizer_->quantize(request_.tensor, {.rowwise = first, .columnwise = second});
  } else {
    quantized = std::get<QuantizedTensor>(first ? cached->first : cached->second);
    quantizer_->quantize_into(request_.tensor, quantized);
    bump_versions(quantized);
  }
  return {first ? Operand(quantized) : Operand(values()),
          second ? Operand(quantized) : Operand(plain_second(quantized))};
}

// Returns the high-precision operand of the second GEMM. Undefined if it is not needed: a cache
// without it must not serve the next micro-batch.
at::Tensor OperandBuilder::plain_second(const QuantizedTensor& first) const {
  if (request_.codes != nullptr && !request_.second_needed) return {};
  if (!context_.recipe->dequantized_backward || gemms_.first != Gemm::fprop) return values();
  return request_.second_needed ? first.dequantize().to(request_.dtype) : at::Tensor();
}

GemmOperands OperandBuilder::build() const {
  if (!context_.plan) return quantize(wants_first(), wants_second(), cached_);
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
                        .tensor = values(),
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

// Returns the offset of this rank's rows in the gathered operand; nullopt if it is not gathered.
std::optional<std::int64_t> OperandBuilder::first_row() const {
  if (request_.gathered || !layer_.parallel.gathers(request_.tensor_name)) return std::nullopt;
  return rank_in(*layer_.parallel.group) * values().size(0);
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
         .tensor = values().defined() ? &values() : nullptr,
         .rowwise = &operands.first,
         .columnwise = second_needed ? &operands.second : &operands.first,
         .quantizer = quantizer_,
         .tensor_parallel = layer_.hooks.tensor_parallel(),
         .first_microbatch = first_microbatch,
         .recipe = context_.recipe.get(),
         .delayed = context_.delayed.get(),
         .rowwise_modified = modifies(gemms_.first),
         .columnwise_modified = modifies(second_needed ? gemms_.second : gemms_.first),
         .replicated = request_.gathered || layer_.parallel.replicates(request_.tensor_name),
         .first_row = first_row()});
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

// ---- weights

// A stored weight that was created without gradients does not have a columnwise copy for dgrad.
// Per-tensor codes are transposed; block formats would need the values, which are not stored.
QuantizedTensor with_columnwise(const std::string& layer, const QuantizedTensor& stored) {
  if (stored.columnwise.defined()) return stored;
  if (stored.mode != ScalingMode::tensor) {
    raise<UsageError>(
        "{}: its weight is stored in {} scaling and was made without gradients, so it has no "
        "columnwise copy for dgrad; make the module outside of torch.no_grad() and "
        "torch.inference_mode() to train it",
        layer, get_name(stored.mode));
  }
  QuantizedTensor both = stored;
  both.columnwise = {ops::transpose_codes(stored.rowwise.codes), stored.rowwise.scale_inv};
  return both;
}

// Returns the operands of a weight stored in low precision: the stored codes for quantized GEMMs,
// else the dequantized values. Calls modify_tensor.
GemmOperands stored_weight_operand(GemmLayer& layer, const ForwardContext& context,
                                   const QuantizedTensor& stored, const OperandRequest& request) {
  const auto operand = [&](Gemm gemm) -> Operand {
    const bool high_precision =
        !context.quantizes(gemm) || (context.plan && context.plan->runs_in_high_precision(gemm));
    if (high_precision) return stored.dequantize().to(request.dtype);
    return gemm == Gemm::dgrad ? with_columnwise(layer.name(), stored) : stored;
  };
  const auto [first, second] = get_gemms(TensorName::weight);
  GemmOperands operands{operand(first), at::Tensor()};
  if (request.second_needed) operands.second = operand(second);
  if (weight_modify_mask(context) == 0) return operands;
  OperandRequest values = request;
  values.tensor = stored.dequantize().to(request.dtype);
  OperandBuilder(layer, context, values).modify(operands);
  return operands;
}

// A stored weight does not have a high-precision original to inspect.
void inspect_stored(GemmLayer& layer, const ForwardContext& context, const GemmOperands& operands,
                    OperandRequest request) {
  request.tensor = at::Tensor();
  if (context.plan) OperandBuilder(layer, context, request).inspect(operands);
}

// The parts have no common cast: features inspect their joined values as a plain weight.
void inspect_parts(GemmLayer& layer, const ForwardContext& context, const Weight& weight,
                   const std::vector<GemmOperands>& operands, OperandRequest request) {
  if (!context.plan || !context.plan->inspects(TensorName::weight)) return;
  const auto joined = [&](Operand GemmOperands::*side) {
    std::vector<at::Tensor> values;
    for (const GemmOperands& each : operands) {
      values.push_back(plain_values(each.*side).to(request.dtype));
    }
    return at::cat(values);
  };
  std::vector<at::Tensor> originals;
  for (const QuantizedTensor& part : weight.stored_parts) originals.push_back(part.dequantize());
  request.tensor = at::cat(originals).to(request.dtype);
  const at::Tensor first = joined(&GemmOperands::first);
  const at::Tensor second = request.second_needed ? joined(&GemmOperands::second) : at::Tensor();
  OperandBuilder(layer, context, request).inspect({first, second});
}

// The cache must also serve micro-batches that need dgrad if this one does not: this may be a
// validation between them or the first forward of a checkpoint. In inference a second copy would
// waste memory; the first micro-batch that needs it rebuilds both.
bool caches_second(const WeightCache& cache, const OperandRequest& request) {
  return request.second_needed || recomputation::is_active() || cache.has_quantized_second();
}

// Cached operands are overwritten by the next update. A feature may have returned the weight
// itself, which must not be overwritten.
GemmOperands clone_if_aliases(GemmOperands operands, const at::Tensor& weight) {
  for (Operand* operand : {&operands.first, &operands.second}) {
    auto* plain = std::get_if<at::Tensor>(operand);
    if (plain != nullptr && plain->defined() && plain->is_alias_of(weight)) *plain = plain->clone();
  }
  return operands;
}

// Returns true if dgrad's plain operand is the dequantized operand of fprop.
bool dequantizes(const ForwardContext& context) {
  return context.recipe != nullptr && context.recipe->dequantized_backward;
}

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

class DequantizeHandle : public torch::autograd::Function<DequantizeHandle> {
 public:
  static at::Tensor forward(AutogradContext* context, const at::Tensor& tensor,
                            at::ScalarType dtype) {
    const at::AutoDispatchBelowADInplaceOrView below_autograd;
    context->saved_data["dtype"] = tensor.scalar_type();
    QuantizedTensor asked = *find_quantized(tensor);
    asked.dtype = dtype;
    return asked.dequantize();
  }

  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    return {gradients[0].to(context->saved_data["dtype"].toScalarType()), at::Tensor()};
  }
};

}  // namespace

GemmOperands quantize_operand(GemmLayer& layer, const ForwardContext& context,
                              const OperandRequest& request, const GemmOperands* cached) {
  if (context.calibrating) {
    const auto& quantizer = context.quantizers[get_role(request.tensor_name)];
    if (quantizer) quantizer->calibrate(request.tensor);
  }
  return OperandBuilder(layer, context, request, cached).build();
}

GemmOperands weight_operand(GemmLayer& layer, const ForwardContext& context, const Weight& weight,
                            std::optional<bool> is_first_microbatch,
                            const OperandRequest& request) {
  if (weight.quantized) {
    GemmOperands stored = stored_weight_operand(layer, context, *weight.quantized, request);
    inspect_stored(layer, context, stored, request);
    return stored;
  }
  if (!is_first_microbatch.has_value()) return quantize_operand(layer, context, request);
  if (*is_first_microbatch && context.recomputation) {
    // The cache may already contain a later minibatch's weight. The first forward's scales are
    // used, so the bits are equal.
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
  GemmOperands operands = quantize_operand(layer, context, both, cached);
  cache.store(operands, context, request.tensor);
  return operands;
}

std::vector<GemmOperands> weight_operands(GemmLayer& layer, const ForwardContext& context,
                                          const Weight& weight,
                                          std::optional<bool> is_first_microbatch,
                                          const OperandRequest& request) {
  if (weight.stored_parts.empty()) {
    return {weight_operand(layer, context, weight, is_first_microbatch, request)};
  }
  std::vector<GemmOperands> operands;
  for (const QuantizedTensor& part : weight.stored_parts) {
    const std::int64_t multiple =
        std::max(scheme(part.mode).row_multiple, scheme(part.mode).block_length);
    if (context.quantizes() && part.sizes[0] % multiple != 0) {
      raise<ShapeError>(
          "{}: a part of its weight has {} rows; stored in {} scaling, parts are multiples of {}; "
          "store the weight whole (for attention: fuse_qkv_params=True)",
          layer.name(), part.sizes[0], get_name(part.mode), multiple);
    }
    operands.push_back(stored_weight_operand(layer, context, part, request));
  }
  inspect_parts(layer, context, weight, operands, request);
  return operands;
}

at::Tensor as_matrix(const at::Tensor& tensor) {
  const std::int64_t columns = tensor.size(-1);
  if (tensor.dim() == 2) return tensor;
  at::Tensor matrix = tensor.reshape({columns == 0 ? 0 : tensor.numel() / columns, columns});
  // A view created below autograd has a separate version counter.
  if (matrix.is_alias_of(tensor)) {
    torch::autograd::impl::set_version_counter(matrix,
                                               torch::autograd::impl::version_counter(tensor));
  }
  return matrix;
}

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
      return recipe_ == context.recipe;  // the feature's first result counts
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

at::Tensor dequantize_handle(const at::Tensor& tensor, std::optional<at::ScalarType> dtype) {
  if (!is_quantized_handle(tensor)) return tensor;
  return DequantizeHandle::apply(tensor, dtype.value_or(tensor.scalar_type()));
}

}  // namespace telens
