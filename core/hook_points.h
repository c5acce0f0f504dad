// The calls that modules make to a debug session: routing calls and GEMM calls. Modules make no
// other calls to the outside.
//
// A layer (one linear operation with its three GEMMs, or one attention) owns a LayerHooks. It calls
// begin_forward() at the start of a forward. Without a debug session, or if no feature is due for
// the layer, the call costs one integer compare and returns nullptr: the layer runs its fused path.
// Otherwise the call returns the RoutingPlan of this forward; the layer runs unfused and makes
// exactly the calls whose bits are set. The backward of that forward uses the same plan.
//
// TELens adds two calls to the contract's three GEMM calls: inspect_gemm reports a GEMM's inputs,
// its output and the kernel that ran; inspect_attention reports the kernel that an attention ran
// with.
#pragma once

#include <cstdint>
#include <optional>

#include "core/base/error.h"
#include "core/base/names.h"
#include "core/layer_hooks.h"
#include "core/ops/gemm.h"
#include "core/quantization/quantized_tensor.h"
#include "core/quantization/quantizer.h"

namespace telens {

class Recipe;
struct DelayedScaling;

namespace ops {
struct AttentionChoice;  // core/ops/attention.h
struct AttentionScores;  // core/ops/attention.h
}  // namespace ops

struct ModifyTensorCall {
  Gemm gemm;
  TensorName tensor_name;
  const at::Tensor& tensor;      // high precision, unmodified
  Quantizer* default_quantizer;  // nullptr outside fp8_autocast
  at::ScalarType dtype;          // dtype that the cast would have; for outputs, the tensor's dtype
  // Set for an update of the weight cache: the return value of modify_tensor for the weight's
  // earlier value, to fill in place.
  Operand* out = nullptr;

  // Returns the return value for a feature: `value`, copied into the storage of `out` if given. If
  // kind, shape or dtype differ, `out` becomes `value` itself.
  TELENS_EXPORT Operand deliver(Operand value) const;
};

struct InspectTensorCall {
  TensorName tensor_name;
  const at::Tensor* tensor;   // nullptr for weights that are stored in FP8
  const Operand* rowwise;     // operand of the first GEMM; nullptr for outputs
  const Operand* columnwise;  // operand of the second GEMM; nullptr for outputs
  Quantizer* quantizer;       // nullptr outside fp8_autocast and for outputs
  TensorParallel tensor_parallel;
  bool first_microbatch = true;    // false if a cached weight is reused
  const Recipe* recipe = nullptr;  // inputs: the recipe that the layer runs under; nullptr if none
  // Inputs: the delayed scaling that the layer's histories follow, from the recipe or from a custom
  // recipe's request; nullptr if none.
  const DelayedScaling* delayed = nullptr;
  const at::Tensor* bias = nullptr;  // output: the bias that fprop has added; nullptr if none
  // For inputs: modify_tensor created rowwise or columnwise, instead of the quantizer.
  bool rowwise_modified = false;
  bool columnwise_modified = false;
  bool evaluation = false;  // RoutingPlan::evaluation; set by the listener, for its features
  bool replicated = false;  // each rank of tensor_parallel has this whole tensor
  // Outputs: summed over the ranks of tensor_parallel; this rank's GEMM computed a partial sum.
  bool summed = false;
  // Set if the GEMMs read rows from every rank of tensor_parallel, in rank order and equally many
  // from each rank: the index at which the rows of `tensor` begin. nullopt if the GEMMs read only
  // these rows.
  std::optional<std::int64_t> first_row = std::nullopt;
  // Only for TensorName::scores, which has no `tensor`: the input of attention_statistics.
  const ops::AttentionScores* scores = nullptr;

  // Returns the delayed scaling that this tensor's scale follows; nullptr if none. `delayed` may
  // apply only to other tensors of the layer.
  const DelayedScaling* followed() const {
    return delayed != nullptr && follows_delayed() ? delayed : nullptr;
  }
  // Like followed(), when `delayed` is set.
  TELENS_EXPORT bool follows_delayed() const;
};

struct InspectPostquantizeCall {
  Gemm gemm;
  TensorName tensor_name;
  const Operand& tensor;  // the result of the cast or of modify_tensor
  bool rowwise;           // true if it feeds the tensor's first GEMM
  TensorParallel tensor_parallel;
};

// A GEMM that has just run.
struct InspectGemmCall {
  Gemm gemm;
  TensorName a_name;
  TensorName b_name;
  const Operand& a;
  const Operand& b;
  const at::Tensor& bias;    // fprop's; may be undefined
  const at::Tensor& output;  // before modify_tensor
  // The recipe if it quantizes; nullptr otherwise.
  const Recipe* recipe;
  const Quantizer* a_quantizer;
  const Quantizer* b_quantizer;
  bool split_accumulator;  // for quantized operands (MMParams)
  ops::GemmChoice choice;
  const GemmOverlapNote* overlap = nullptr;  // nullptr if the layer has not requested an overlap
};

// An attention that has just run.
struct InspectAttentionCall {
  const at::Tensor& query;  // [batch, heads, seq, size], in the dtype that the attention runs in
  const ops::AttentionChoice& choice;
};

// Answers the hook points: the debug session (hooks/). Core knows only this interface. Calls may
// come from any thread, several at a time; the implementation locks as needed. A call that must
// stop the run throws.
class HookListener {
 public:
  virtual ~HookListener() = default;

  // Returns the plan of this forward; may call layer.sleep_until(). An empty plan means the fused
  // path.
  virtual RoutingPlan route(LayerHooks& layer, const RoutingRequest& request) = 0;

  // Returns the tensor that replaces the given one. If call.out is set, the return value is
  // ignored.
  virtual Operand modify_tensor(LayerHooks& layer, const RoutingPlan& plan,
                                const ModifyTensorCall& call) = 0;
  virtual void inspect_tensor(LayerHooks& layer, const RoutingPlan& plan,
                              const InspectTensorCall& call) = 0;
  virtual void inspect_tensor_postquantize(LayerHooks& layer, const RoutingPlan& plan,
                                           const InspectPostquantizeCall& call) = 0;
  virtual void inspect_gemm(LayerHooks& layer, const RoutingPlan& plan,
                            const InspectGemmCall& call) = 0;
  virtual void inspect_attention(LayerHooks& layer, const RoutingPlan& plan,
                                 const InspectAttentionCall& call) {}

  // Returns true if a feature may inspect or modify the product of the layer's wgrad, in any
  // iteration. The answer does not change while the listener is installed; nullopt if it is not
  // known yet.
  virtual std::optional<bool> may_watch_wgrad(LayerHooks& layer) { return true; }
};

}  // namespace telens
