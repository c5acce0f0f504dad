// From a high-precision input tensor of a layer to what its two GEMMs get.
#pragma once

#include <memory>

#include "core/hook_points.h"

namespace telens {

// The operands that one tensor gives its two GEMMs (GemmsOfTensor).
struct PreparedTensor {
  Operand first;
  Operand second;
};

struct PreparationRequest {
  TensorName tensor_name;
  at::Tensor tensor;     // [rows, columns], high precision
  Quantizer* quantizer;  // nullptr outside fp8_autocast
  const Recipe* recipe;  //
  at::ScalarType dtype;  // of the layer's computation
  bool first_quantized;  // whether the recipe wants the first and the second GEMM in FP8
  bool second_quantized;
  bool second_needed = true;  // false where no gradient will be asked of the second GEMM
  // What was prepared from an earlier value of the tensor, of the same kinds; it is filled in place
  // and comes back as the result. A backward that still needs the old values will notice.
  const PreparedTensor* update = nullptr;
};

// The fused path: one cast for both GEMMs, nobody is called.
PreparedTensor prepare(const PreparationRequest& request);

// The unfused path, in the contract's order: cast; modify_tensor for the second GEMM, then for the
// first; inspect_tensor on the original; inspect_tensor_postquantize, first, then second.
struct WatchedLayer {
  LayerHooks& hooks;
  const RoutingPlan& plan;
  bool observes = true;          // false in a recomputation: it was observed the first time
  bool first_microbatch = true;  // false where a kept weight is used again
};
PreparedTensor prepare_watched(const PreparationRequest& request, const WatchedLayer& layer);

// The altering half of prepare_watched alone: replaces what the plan lets features modify.
void modify_prepared(const PreparationRequest& request, const WatchedLayer& layer,
                     PreparedTensor& prepared);

// The observing half of prepare_watched alone, for a tensor that was prepared earlier (a kept
// weight) or is stored quantized (request.tensor undefined).
void observe_prepared(const PreparationRequest& request, const WatchedLayer& layer,
                      const PreparedTensor& prepared);

// For outputs: modify_tensor, then inspect_tensor on its result. bias: that fprop has added, or
// undefined.
at::Tensor pass_output(at::Tensor output, TensorName tensor_name, const at::Tensor& bias,
                       const WatchedLayer& layer);

}  // namespace telens
