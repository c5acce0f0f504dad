// The hook points and the FP8 state of a DotProductAttention. Features only inspect its tensors.
// Gradients are inspected by tensor hooks, so that the graph does not change.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/FunctionRef.h>

#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "core/modules/attention/attention_quantization.h"
#include "core/modules/shared/forward_context.h"
#include "core/ops/attention.h"

namespace telens {

// One forward and its backward. Copies share the state.
class AttentionCall {
 public:
  AttentionCall() = default;  // no feature is due

  explicit operator bool() const { return plan_ != nullptr; }

  // How its tensors are quantized; nullopt in high precision.
  const std::optional<Fp8Attention>& fp8() const { return fp8_; }

  // A copy for a part of a forward under context parallelism, which has several attentions: its
  // backward does not end the region's backward.
  AttentionCall part() const {
    AttentionCall copy = *this;
    if (copy.fp8_) copy.fp8_->first_in_region = false;
    return copy;
  }

  bool inspects(TensorName tensor) const { return plan_ != nullptr && plan_->inspects(tensor); }

  // Calls the features that inspect the tensor, except in a recomputation.
  void show(TensorName name, const at::Tensor& tensor) const;
  void show_scores(const ops::AttentionScores& scores) const;

  // Returns the record for attend_heads() to fill if a feature inspects the kernel; else nullptr.
  // query: [batch, heads, seq, size], before a mask of another dtype widened it.
  std::shared_ptr<ops::AttentionChoice> asked_choice() const;
  void show_choice(const at::Tensor& query,
                   const std::shared_ptr<ops::AttentionChoice>& choice) const;

  // Inspects `tensor`'s gradient in the shape that `arranged` gives it. `tensor` must belong to
  // this forward; it must not be a user's leaf.
  using Arrange = std::function<at::Tensor(const at::Tensor& gradient)>;
  void show_gradient(TensorName name, const at::Tensor& tensor, Arrange arranged) const;

 private:
  friend class AttentionLayer;
  std::shared_ptr<LayerHooks> hooks_;
  std::shared_ptr<const RoutingPlan> plan_;
  std::optional<Fp8Attention> fp8_;
  bool recomputation_ = false;
};

class AttentionLayer {
 public:
  AttentionLayer() : state_(std::make_shared<State>()) {}

  struct Request {
    const at::Tensor& query;                  // as given; features do not see an empty one
    bool training;                            // the module's mode
    bool fp8_output;                          // attach the codes to an FP8 output
    c10::function_ref<bool()> asks_gradient;  // a backward follows; called in FP8
  };
  // Costs one comparison without a session or if nothing is due. Runs in FP8 under a recipe with
  // fp8_dpa. Throws UsageError if torch's checkpoint recomputes such a forward, or if fp8_output is
  // requested for an output that is not quantized.
  AttentionCall begin_forward(const Request& request);

  LayerHooks& hooks() { return state_->hooks; }
  AttentionQuantization& quantization() { return state_->quantization; }
  const AttentionQuantization& quantization() const { return state_->quantization; }

 private:
  struct State {
    LayerHooks hooks{{}, LayerKind::attention};
    AttentionQuantization quantization;
    AttentionRecipes recipes;
    bool has_trained = false;    // a forward in training mode ran
    bool ran_quantized = false;  // the most recent forward
  };

  const std::string& name();  // the layer's name or kind
  bool is_evaluation(const Request& request);
  void enter_recipe(ForwardContext& context);
  ForwardContext make_context(const Request& request);
  std::optional<Fp8Attention> get_quantizers(const ForwardContext& context, const Request& request);

  std::shared_ptr<State> state_;  // shared with backwards, which may outlive the module
};

}  // namespace telens
