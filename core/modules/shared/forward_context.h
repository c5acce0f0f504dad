// The decisions made once at the start of a layer's forward: recipe, quantizers, routing plan.
#pragma once

#include <memory>

#include "core/distributed/gather_operand.h"
#include "core/hook_points.h"
#include "core/quantization/autocast.h"

namespace telens {

// Copied into the backward; a checkpoint keeps it for the recomputation.
struct ForwardContext {
  std::shared_ptr<const RoutingPlan> plan;  // nullptr if no feature is due (the fused path)
  std::shared_ptr<const Recipe> recipe;     // nullptr outside fp8_autocast
  LayerQuantizers quantizers;
  // The delayed scaling of histories and scales: the recipe or a custom recipe's request; nullptr
  // if there is none.
  std::shared_ptr<const DelayedScaling> delayed;
  std::shared_ptr<Region> region;
  bool calibrating = false;      // collect amaxes, run GEMMs in high precision
  bool first_in_region = false;  // its backward ends the backward of the region
  bool recomputation = false;    // repeats an earlier forward; not observed again

  // True if the recipe quantizes (this GEMM). A plan may still run the GEMM in high precision.
  bool quantizes() const { return recipe != nullptr && !calibrating; }
  bool quantizes(Gemm gemm) const { return quantizes() && quantizers.quantizes(gemm); }

  // Returns the quantizer of a tensor; nullptr if it stays in high precision.
  Quantizer* quantizer(TensorRole role) const {
    return quantizes() ? quantizers[role].get() : nullptr;
  }

  // True if quantizing each rank's rows gives the same codes as quantizing the whole.
  bool quantizes_by_parts(TensorRole role, std::int64_t rows) const {
    const Quantizer* used = quantizer(role);
    return used == nullptr || can_join_codes(used->mode(), rows);
  }

  // True if a feature may modify the tensor for this GEMM.
  bool modifies(Gemm gemm, TensorName name) const { return plan && plan->modifies(gemm, name); }

  // MMParams of the GEMM. Without a recipe, FP8 operands of a feature use the accurate sum.
  bool uses_split_accumulator(Gemm gemm) const {
    return !quantizes() || recipe->get_parameters(gemm).use_split_accumulator;
  }
};

}  // namespace telens
