// Everything decided once at the start of a layer's forward: recipe, quantizers, routing plan.
#pragma once

#include <memory>

#include "core/hook_points.h"
#include "core/quantization/autocast.h"

namespace telens {

// Copied into the backward, and kept by a checkpoint for the recomputation.
struct ForwardContext {
  std::shared_ptr<const RoutingPlan> plan;  // nullptr: no feature is due, the fused path
  std::shared_ptr<const Recipe> recipe;     // nullptr: outside fp8_autocast
  LayerQuantizers quantizers;
  // Histories and scales follow it: the recipe itself, or a custom one's request; nullptr: none.
  std::shared_ptr<const DelayedScaling> delayed;
  std::shared_ptr<Region> region;
  bool calibrating = false;      // amaxes are collected, GEMMs run in high precision
  bool first_in_region = false;  // its backward ends the backward of the region
  bool recomputation = false;    // repeats an earlier forward: it is not observed a second time

  // The recipe quantizes; it runs this GEMM on quantized operands. A plan may still have the GEMM
  // run in high precision.
  bool quantizes() const { return recipe != nullptr && !calibrating; }
  bool quantizes(Gemm gemm) const { return quantizes() && quantizers.quantizes(gemm); }

  // The quantizer of a tensor; nullptr: it stays in high precision.
  Quantizer* quantizer(TensorRole role) const {
    return quantizes() ? quantizers[role].get() : nullptr;
  }

  // True if what the quantizer of a tensor makes of each rank's rows is what it makes of the whole.
  bool quantizes_by_parts(TensorRole role, std::int64_t rows) const;

  // True if a feature may change the tensor on its way into the GEMM.
  bool modifies(Gemm gemm, TensorName name) const { return plan && plan->modifies(gemm, name); }

  // MMParams of the GEMM. Codes that a feature makes outside of a recipe keep the accurate sum.
  bool uses_split_accumulator(Gemm gemm) const {
    return !quantizes() || recipe->get_parameters(gemm).use_split_accumulator;
  }
};

}  // namespace telens
