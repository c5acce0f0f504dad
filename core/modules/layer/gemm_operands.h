// Builds the operands of a layer's GEMMs: plain, quantized now, cached from the first micro-batch,
// or stored quantized. Calls modify_tensor, inspect_tensor and inspect_tensor_postquantize on them.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "core/base/error.h"
#include "core/modules/layer/delayed_wgrads.h"
#include "core/modules/layer/linear_parallel.h"
#include "core/modules/shared/forward_context.h"
#include "core/modules/shared/parameter_options.h"

namespace telens {

// The operands of a tensor's two GEMMs (GemmsOfTensor).
struct GemmOperands {
  Operand first;
  Operand second;
};

struct OperandRequest {
  TensorName tensor_name;
  // [rows, columns], high precision; undefined if the weight is stored quantized or if `codes` is
  // set.
  at::Tensor tensor;
  at::ScalarType dtype;  // of the computation
  // False if the tensor's first or second GEMM does not run: nothing is quantized for it.
  bool first_needed = true;
  bool second_needed = true;
  bool gathered = false;  // rows from all ranks
  // The quantized tensor if the input is already quantized, as a matrix; nullptr otherwise.
  const QuantizedTensor* codes = nullptr;
};

// The weight operands that the first micro-batch leaves for the following ones.
class WeightCache {
 public:
  // Returns true if a forward in this context would build the same operands.
  bool is_valid_for(const ForwardContext& context, const OperandRequest& request) const;

  // Requires a valid cache.
  const GemmOperands& operands() const { return *operands_; }

  bool has_quantized_second() const { return operands_ && is_quantized(operands_->second); }

  // Caches the operands of `weight`. Does not cache an unquantized weight unless a feature modified
  // it.
  void store(const GemmOperands& operands, const ForwardContext& context, const at::Tensor& weight);

 private:
  std::optional<GemmOperands> operands_;
  std::uint32_t modify_mask_ = 0;               // bits of RoutingPlan::modify at store()
  std::shared_ptr<const Recipe> recipe_;        // at store(); nullptr in high precision
  std::shared_ptr<const Quantizer> quantizer_;  // nullptr if not quantized
  bool dequantized_ = false;  // dgrad's plain operand is the dequantized one of fprop
};

// Returns the bits of RoutingPlan::modify for the weight.
std::uint32_t weight_modify_mask(const ForwardContext& context);

// The state of a linear layer that forward and backward share. A backward may outlive the layer's
// module.
struct GemmLayer {
  std::string kind;  // "Linear"; used in messages about an unnamed layer
  LayerHooks hooks;
  WeightCache weight_cache;
  LinearParallel parallel;
  DelayedWgrads delayed_wgrads;

  const std::string& name() const { return hooks.name().empty() ? kind : hooks.name(); }
};

// Builds the operands of an activation, a gradient, or a weight that is neither cached nor stored
// quantized. Without a plan: one cast for both GEMMs. With a plan, in the contract's order: cast;
// modify_tensor for the second GEMM, then the first; inspect_tensor on the original;
// inspect_tensor_postquantize, first, then second. An input that is already quantized is not cast;
// the calls receive its values as the original.
// `cached`: operands of an earlier value of the tensor, of the same kinds; they are overwritten and
// returned, and a backward that still needs the old values raises an error. nullptr if there are
// none.
GemmOperands quantize_operand(GemmLayer& layer, const ForwardContext& context,
                              const OperandRequest& request, const GemmOperands* cached = nullptr);

// Returns the operands of a weight. is_first_microbatch: true quantizes and caches (in the storage
// of the cached operands if they have the same kind); false uses the cached operands (and caches if
// there are none); nullopt quantizes without caching. Throws UsageError if dgrad requires a stored
// weight that was created without gradients.
GemmOperands weight_operand(GemmLayer& layer, const ForwardContext& context, const Weight& weight,
                            std::optional<bool> is_first_microbatch, const OperandRequest& request);

// Like weight_operand(), with one element per separately stored part, or one in total. A part is
// modified by itself; features inspect all parts together as a plain weight. Throws ShapeError if a
// part does not fit GEMMs of its scaling.
std::vector<GemmOperands> weight_operands(GemmLayer& layer, const ForwardContext& context,
                                          const Weight& weight,
                                          std::optional<bool> is_first_microbatch,
                                          const OperandRequest& request);

// Returns the tensor as a matrix [rows, columns] that shares its version counter, so that in-place
// changes are detected.
at::Tensor as_matrix(const at::Tensor& tensor);

// Dequantizes a handle (core/quantization/quantized_payload.h) to `dtype` (BF16, FP16 or FP32;
// default: the tensor's). Differentiable: the gradient of the values is the gradient of the tensor.
// Returns any other tensor unchanged.
TELENS_EXPORT at::Tensor dequantize_handle(const at::Tensor& tensor,
                                           std::optional<at::ScalarType> dtype = std::nullopt);

}  // namespace telens
