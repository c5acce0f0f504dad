// An attention's end of the hook points and its FP8 state: DotProductAttention owns one. What it is
// shown is looked at and stays as it is; gradients are looked at by hooks of tensors, so that the
// graph is the same as without.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/FunctionRef.h>

#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "core/modules/attention/attention_quantization.h"
#include "core/modules/attention/attention_recipe.h"
#include "core/modules/shared/forward_context.h"
#include "core/ops/attention_choice.h"
#include "core/ops/attention_statistics.h"

namespace telens {

// One forward and its backward. Copies are the same one.
class AttentionCall {
 public:
  AttentionCall() = default;  // no feature looks

  explicit operator bool() const { return plan_ != nullptr; }

  // How its tensors are cast; nothing: it runs in high precision.
  const std::optional<Fp8Attention>& fp8() const { return fp8_; }

  // The same for one of several attentions that a forward is made of under context parallelism:
  // the backward of none of them ends the backward of the region.
  AttentionCall part() const {
    AttentionCall copy = *this;
    if (copy.fp8_) copy.fp8_->first_in_region = false;
    return copy;
  }

  bool inspects(TensorName tensor) const { return plan_ != nullptr && plan_->inspects(tensor); }

  // Where a feature wants to see them, and not where a forward is computed a second time.
  void show(TensorName name, const at::Tensor& tensor) const;
  void show_scores(const ops::AttentionScores& scores) const;

  // Where a feature wants to know which kernel runs, what attend_heads() fills; nullptr elsewhere.
  // query: [batch, heads, seq, size], before a mask of another dtype widened it.
  std::shared_ptr<ops::AttentionChoice> asked_choice() const;
  void show_choice(const at::Tensor& query,
                   const std::shared_ptr<ops::AttentionChoice>& choice) const;

  // Shows `tensor`'s gradient, once it is known, as `arranged` makes it. `tensor` is of this
  // forward alone: no leaf of the user's.
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
    const at::Tensor& query;                  // as it came; an empty one is shown to no feature
    bool training;                            // the module's mode
    bool fp8_output;                          // in FP8 the output carries its codes
    c10::function_ref<bool()> asks_gradient;  // a backward comes; asked where it is in FP8
  };
  // Without a session, or while nothing is due, one compare. In FP8 under a recipe with fp8_dpa;
  // throws UsageError where a checkpoint of torch's own computes such a forward anew, and where
  // fp8_output asks for the codes of an output that is not cast.
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
    bool ran_quantized = false;  // the newest forward did
  };

  const std::string& name();  // the layer's, or what it is
  bool is_evaluation(const Request& request);
  void enter_recipe(ForwardContext& context);
  ForwardContext make_context(const Request& request);
  std::optional<Fp8Attention> get_quantizers(const ForwardContext& context, const Request& request);

  std::shared_ptr<State> state_;  // shared with backwards, which may outlive the module
};

}  // namespace telens
