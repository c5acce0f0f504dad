// Builds the operands of a layer's GEMMs: plain, quantized now, cached from the first micro-batch,
// or stored quantized. Calls modify_tensor, inspect_tensor and inspect_tensor_postquantize on them.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "core/modules/layer/delayed_wgrads.h"
#include "core/modules/layer/linear_parallel.h"
#include "core/modules/shared/forward_context.h"
#include "core/modules/shared/weight.h"

namespace telens {

// The operands that one tensor gives its two GEMMs (GemmsOfTensor).
struct GemmOperands {
  Operand first;
  Operand second;
};

struct OperandRequest {
  TensorName tensor_name;
  // [rows, columns], high precision; undefined: the weight is stored quantized, or there are codes.
  at::Tensor tensor;
  at::ScalarType dtype;  // the dtype in which the layer computes
  // False where the tensor's first or second GEMM does not run: nothing is quantized for it.
  bool first_needed = true;
  bool second_needed = true;
  bool gathered = false;  // from all ranks
  // The tensor as it came, if it came quantized; its sizes are those of the matrix.
  const QuantizedTensor* codes = nullptr;
};

// The operands of the weight that the first micro-batch left for the others.
class WeightCache {
 public:
  // True if the operands are of the kind that a forward in this context would make.
  bool is_valid_for(const ForwardContext& context, const OperandRequest& request) const;

  // For a valid cache.
  const GemmOperands& operands() const { return *operands_; }

  bool has_quantized_second() const { return operands_ && is_quantized(operands_->second); }

  // Caches the operands of `weight`. An unquantized weight is free to recompute: without a feature
  // in between it is not cached.
  void store(const GemmOperands& operands, const ForwardContext& context, const at::Tensor& weight);

 private:
  std::optional<GemmOperands> operands_;
  std::uint32_t modify_mask_ = 0;         // bits of RoutingPlan::modify that they were made under
  std::shared_ptr<const Recipe> recipe_;  // with modify_mask_: nullptr: high precision
  std::shared_ptr<const Quantizer> quantizer_;  // made them where no feature did
  bool dequantized_ = false;  // dgrad's plain operand is what fprop's codes stand for
};

// The bits of RoutingPlan::modify for the weight.
std::uint32_t weight_modify_mask(const ForwardContext& context);

// A linear layer as its GEMMs see it. Forward and backward share it; a backward may outlive the
// layer's module.
struct GemmLayer {
  std::string kind;  // "Linear"; the name in messages where the layer has none
  LayerHooks hooks;
  WeightCache weight_cache;
  LinearParallel parallel;
  DelayedWgrads delayed_wgrads;

  const std::string& name() const { return hooks.name().empty() ? kind : hooks.name(); }
};

// The operands of an activation or a gradient, or of a weight that is neither cached nor stored
// quantized. Without a plan: one cast for both GEMMs. With one, in the contract's order: cast;
// modify_tensor for the second GEMM, then for the first; inspect_tensor on the original;
// inspect_tensor_postquantize, first, then second. Codes that came take the place of the cast;
// calls get their values as the original.
GemmOperands quantize_operand(GemmLayer& layer, const ForwardContext& context,
                              const OperandRequest& request);

// The operands of a weight. is_first_microbatch: true quantizes it and caches the result in the
// layer (in the storage of the cached operands, if those are of the same kind); false takes the
// cached operands (and caches them if there are none); none quantizes without caching. Throws
// UsageError where dgrad needs a stored weight that was made without gradients.
GemmOperands weight_operand(GemmLayer& layer, const ForwardContext& context, const Weight& weight,
                            std::optional<bool> is_first_microbatch, const OperandRequest& request);

// The same for a weight whose parts are stored in low precision, which gives operands for each: a
// part is modified by itself, and looked at with the others, as a plain weight. Others give one.
// Throws ShapeError where a part does not fit GEMMs of its scaling.
std::vector<GemmOperands> weight_operands(GemmLayer& layer, const ForwardContext& context,
                                          const Weight& weight,
                                          std::optional<bool> is_first_microbatch,
                                          const OperandRequest& request);

// [rows, columns] of a tensor. What reads it later notices an in-place change of the tensor.
at::Tensor as_matrix(const at::Tensor& tensor);

}  // namespace telens
