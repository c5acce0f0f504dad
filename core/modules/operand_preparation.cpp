#include "core/modules/operand_preparation.h"

#include <utility>

#include "core/modules/recomputation.h"
#include "core/ops/quantize.h"
#include "core/quantization/role_of.h"

namespace telens {
namespace {

bool any_quantized(const PreparedTensor& prepared) {
  return is_quantized(prepared.first) || is_quantized(prepared.second);
}

// The GEMMs for which this pass lets a feature modify the weight.
std::uint32_t modifications(const LayerPass& pass) {
  const auto [first, second] = gemms_of(TensorName::weight);
  return pass.plan ? pass.plan->modify & (RoutingPlan::bit_of(first, TensorName::weight) |
                                          RoutingPlan::bit_of(second, TensorName::weight))
                   : 0;
}

// Whether what the layer kept is of the kind that this pass would make.
bool serves(const LinearOperation::State& state, const LayerPass& pass,
            const PreparationRequest& request) {
  if (!state.cached_weight || state.cached_modifications != modifications(pass)) {
    return false;
  }
  const auto fits = [&](Gemm gemm, const Operand& kept, bool quantized) {
    if (pass.plan && pass.plan->modifies(gemm, TensorName::weight)) {
      return state.cached_recipe == pass.recipe;  // the feature decided when it was asked first
    }
    const bool wanted = quantized && !(pass.plan && pass.plan->runs_in_high_precision(gemm));
    const auto* codes = std::get_if<QuantizedTensor>(&kept);
    return wanted == (codes != nullptr) &&
           (!wanted ||
            (state.cached_quantizer && state.cached_quantizer->quantizes_as(*request.quantizer) &&
             request.tensor.sizes() == at::IntArrayRef(codes->sizes)));
  };
  const auto [first, second] = gemms_of(TensorName::weight);
  return fits(first, state.cached_weight->first, request.first_quantized) &&
         (!request.second_needed ||
          fits(second, state.cached_weight->second, request.second_quantized));
}

// A stored weight that was made where no gradients are asked for has no copy for dgrad. Under one
// scale it is the same codes, transposed; blocks would have to be made of values that are gone.
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

// A weight stored in low precision, as an operand: its codes under FP8, its values elsewhere.
PreparedTensor prepare_stored(LinearOperation::State& state, const LayerPass& pass,
                              const QuantizedTensor& stored, const PreparationRequest& request) {
  const auto operand = [&](Gemm gemm, bool quantized) -> Operand {
    const bool high_precision =
        !quantized || (pass.plan && pass.plan->runs_in_high_precision(gemm));
    if (high_precision) return Operand(stored.dequantize().to(request.dtype));
    return Operand(gemm == Gemm::dgrad ? with_columnwise(state.name(), stored) : stored);
  };
  const auto [first, second] = gemms_of(TensorName::weight);
  PreparedTensor prepared{operand(first, request.first_quantized), at::Tensor()};
  if (request.second_needed) {
    prepared.second = operand(second, request.second_quantized);
  }
  if (!pass.plan) {
    return prepared;
  }
  const WatchedLayer layer{state.hooks, *pass.plan, !pass.recomputation};
  PreparationRequest own = request;
  if (modifications(pass) != 0) {
    own.tensor = stored.dequantize().to(request.dtype);
    modify_prepared(own, layer, prepared);
  }
  own.tensor = at::Tensor();  // there is no original to look at
  observe_prepared(own, layer, prepared);
  return prepared;
}

// What is kept must serve micro-batches that need a gradient even if this one does not, as a
// validation between them or the first forward of a checkpoint. Where nothing has asked for a
// gradient yet (inference) the second copy would be memory for nothing; a micro-batch that does ask
// makes both anew.
bool second_is_kept(const LinearOperation::State& state, const PreparationRequest& request) {
  return request.second_needed || recomputation::is_active() ||
         (state.cached_weight && is_quantized(state.cached_weight->second));
}

// What is kept is filled at the next update: it must not be the weight itself, which a feature may
// have returned as it is.
PreparedTensor without_alias(PreparedTensor prepared, const at::Tensor& weight) {
  for (Operand* operand : {&prepared.first, &prepared.second}) {
    auto* plain = std::get_if<at::Tensor>(operand);
    if (plain != nullptr && plain->is_alias_of(weight)) {
      *plain = plain->clone();
    }
  }
  return prepared;
}

}  // namespace

PreparedTensor prepare_operand(LinearOperation::State& state, const LayerPass& pass,
                               const PreparationRequest& request) {
  if (pass.calibrating) {
    const auto& quantizer = pass.quantizers[role_of(request.tensor_name)];
    if (quantizer) quantizer->calibrate(request.tensor);
  }
  return pass.plan ? prepare_watched(request, {state.hooks, *pass.plan, !pass.recomputation})
                   : prepare(request);
}

PreparedTensor prepare_weight(LinearOperation::State& state, const LayerPass& pass,
                              const Weight& weight, std::optional<bool> is_first_microbatch,
                              const PreparationRequest& request) {
  if (weight.quantized) {
    return prepare_stored(state, pass, *weight.quantized, request);
  }
  if (!is_first_microbatch.has_value()) {
    return prepare_operand(state, pass, request);
  }
  if (*is_first_microbatch && pass.recomputation) {
    // What is kept may by now be a later minibatch's. The scales are those of the first forward, so
    // the bits are too.
    return prepare_operand(state, pass, request);
  }
  if (!*is_first_microbatch && serves(state, pass, request)) {
    if (pass.plan) {
      observe_prepared(request,
                       {state.hooks, *pass.plan, !pass.recomputation, /*first_microbatch=*/false},
                       *state.cached_weight);
    }
    return *state.cached_weight;
  }
  PreparationRequest both = request;
  both.second_needed = second_is_kept(state, request);
  both.update = serves(state, pass, both) ? &*state.cached_weight : nullptr;
  PreparedTensor prepared = prepare_operand(state, pass, both);
  state.cached_quantizer = pass.quantizes() ? pass.quantizers[TensorRole::weight] : nullptr;
  if (modifications(pass) != 0) {
    state.cached_weight = without_alias(prepared, request.tensor);
    state.cached_modifications = modifications(pass);
    state.cached_recipe = pass.recipe;
  } else if (any_quantized(prepared) || pass.plan) {
    state.cached_weight = prepared;
    state.cached_modifications = 0;
  } else {
    state.cached_weight.reset();  // a plain weight is no work to make again
  }
  return prepared;
}

}  // namespace telens
