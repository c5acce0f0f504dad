#include "core/modules/weight_preparation.h"

#include <utility>

namespace telens {
namespace {

bool both_quantized(const PreparedTensor& prepared) {
  return is_quantized(prepared.first) && is_quantized(prepared.second);
}

// The GEMMs for which this pass lets a feature modify the weight.
std::uint32_t modifications(const LayerPass& pass) {
  const auto [first, second] = gemms_of(TensorName::weight);
  return pass.plan ? pass.plan->modify & (RoutingPlan::bit_of(first, TensorName::weight) |
                                          RoutingPlan::bit_of(second, TensorName::weight))
                   : 0;
}

// Whether what the layer kept is what this pass would make: the same GEMMs quantized.
bool serves(const PreparedTensor& kept, const PreparationRequest& request, const LayerPass& pass) {
  const auto [first, second] = gemms_of(TensorName::weight);
  const auto wanted = [&](Gemm gemm, bool quantized) {
    return quantized && !(pass.plan && (pass.plan->runs_in_high_precision(gemm)));
  };
  if (modifications(pass) != 0) {
    return true;  // the feature decided when it was asked first
  }
  const bool second_fits = !request.second_needed ||
                           is_quantized(kept.second) == wanted(second, request.second_quantized);
  return is_quantized(kept.first) == wanted(first, request.first_quantized) && second_fits;
}

// A weight stored in low precision, as an operand: its codes under FP8, its values elsewhere.
PreparedTensor prepare_stored(LinearOperation::State& state, const LayerPass& pass,
                              const QuantizedTensor& stored, const PreparationRequest& request) {
  const auto operand = [&](Gemm gemm, bool quantized) -> Operand {
    const bool high_precision =
        !quantized || (pass.plan && pass.plan->runs_in_high_precision(gemm));
    return high_precision ? Operand(stored.dequantize().to(request.dtype)) : Operand(stored);
  };
  const auto [first, second] = gemms_of(TensorName::weight);
  PreparedTensor prepared{operand(first, request.first_quantized), at::Tensor()};
  if (request.second_needed) {
    prepared.second = operand(second, request.second_quantized);
  }
  if (pass.plan) {
    const at::Tensor no_original;
    observe_prepared({.tensor_name = TensorName::weight,
                      .tensor = no_original,
                      .quantizer = request.quantizer,
                      .dtype = request.dtype,
                      .first_quantized = request.first_quantized,
                      .second_quantized = request.second_quantized,
                      .second_needed = request.second_needed},
                     {state.hooks, *pass.plan, !pass.recomputation}, prepared);
  }
  return prepared;
}

PreparedTensor prepare_fresh(LinearOperation::State& state, const LayerPass& pass,
                             const PreparationRequest& request) {
  if (pass.calibrating && pass.recipe) {
    request.quantizer->calibrate(request.tensor);
  }
  return pass.plan ? prepare_watched(request, {state.hooks, *pass.plan, !pass.recomputation})
                   : prepare(request);
}

}  // namespace

PreparedTensor prepare_weight(LinearOperation::State& state, const LayerPass& pass,
                              const Weight& weight, std::optional<bool> is_first_microbatch,
                              const PreparationRequest& request) {
  if (weight.quantized) {
    return prepare_stored(state, pass, *weight.quantized, request);
  }
  if (!is_first_microbatch.has_value()) {
    return prepare_fresh(state, pass, request);
  }
  if (*is_first_microbatch && pass.recomputation) {
    // What is kept may by now be a later minibatch's. The scales are those of the first forward, so
    // the bits are too.
    return prepare_fresh(state, pass, request);
  }
  const bool fits = state.cached_weight && state.cached_modifications == modifications(pass) &&
                    serves(*state.cached_weight, request, pass);
  if (!*is_first_microbatch && fits) {
    if (pass.plan) {
      observe_prepared(request,
                       {state.hooks, *pass.plan, !pass.recomputation, /*first_microbatch=*/false},
                       *state.cached_weight);
    }
    return *state.cached_weight;
  }
  // What is kept must serve micro-batches that need a gradient even if this one does not.
  PreparationRequest both = request;
  both.second_needed = true;
  PreparedTensor prepared = prepare_fresh(state, pass, both);
  if (both_quantized(prepared) || pass.plan) {
    state.cached_weight = prepared;
    state.cached_modifications = modifications(pass);
  } else {
    state.cached_weight.reset();  // a plain weight is no work to make again
  }
  return prepared;
}

}  // namespace telens
