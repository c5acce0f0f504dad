// What one forward of a layer is decided by, settled once at its start.
#pragma once

#include <memory>

#include "core/hook_points.h"
#include "core/quantization/autocast.h"

namespace telens {

// Copied into the backward, and kept by a checkpoint for the recomputation.
struct LayerPass {
  std::shared_ptr<const RoutingPlan> plan;  // nullptr: nobody watches, the fused path
  std::shared_ptr<const Recipe> recipe;     // nullptr: outside fp8_autocast
  LayerQuantizers quantizers;
  std::shared_ptr<Region> region;
  bool calibrating = false;      // amaxes are collected, GEMMs run in high precision
  bool first_in_region = false;  // its backward ends the backward of the region
  bool recomputation = false;    // of an earlier forward: it observes nothing a second time

  bool quantizes() const { return recipe != nullptr && !calibrating; }

  // Codes that a feature makes outside of a recipe keep the accurate sum.
  bool uses_split_accumulator(Gemm gemm) const {
    return !quantizes() || recipe->parameters_of(gemm).use_split_accumulator;
  }
};

}  // namespace telens
