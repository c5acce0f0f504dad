#include "core/modules/attention_layer.h"

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/graph_task.h>

#include <utility>

#include "core/modules/recomputation.h"

namespace telens {
namespace {

void inspect(LayerHooks& hooks, const RoutingPlan& plan, const InspectTensorCall& call) {
  const at::AutoDispatchBelowADInplaceOrView below_autograd;  // as in a linear layer's functions
  const hook_points::ListenerCall listener(plan);
  if (listener) listener->inspect_tensor(hooks, plan, call);
}

InspectTensorCall call_of(TensorName name, const at::Tensor* tensor) {
  return {.tensor_name = name,
          .tensor = tensor,
          .rowwise = nullptr,
          .columnwise = nullptr,
          .quantizer = nullptr,
          .tensor_parallel = {}};
}

}  // namespace

void AttentionCall::show(TensorName name, const at::Tensor& tensor) const {
  if (!inspects(name) || recomputation_) return;
  const at::Tensor detached = tensor.detach();
  inspect(*hooks_, *plan_, call_of(name, &detached));
}

void AttentionCall::show_scores(const ops::AttentionScores& scores) const {
  if (!inspects(TensorName::scores) || recomputation_) return;
  InspectTensorCall call = call_of(TensorName::scores, nullptr);
  call.scores = &scores;
  inspect(*hooks_, *plan_, call);
}

std::shared_ptr<ops::AttentionChoice> AttentionCall::asked_choice() const {
  if (plan_ == nullptr || !plan_->attention || recomputation_) return nullptr;
  return std::make_shared<ops::AttentionChoice>();
}

void AttentionCall::show_choice(const at::Tensor& query,
                                const std::shared_ptr<ops::AttentionChoice>& choice) const {
  if (!choice || choice->kernel.empty()) return;
  const hook_points::ListenerCall listener(*plan_);
  if (listener) listener->inspect_attention(*hooks_, *plan_, {.query = query, .choice = *choice});
}

void AttentionCall::show_gradient(TensorName name, const at::Tensor& tensor,
                                  Arrange arranged) const {
  if (!inspects(name) || !tensor.requires_grad()) return;
  tensor.register_hook(
      [hooks = hooks_, plan = plan_, name, arranged = std::move(arranged)](const at::Tensor& grad) {
        if (!grad.defined()) return;
        const at::NoGradGuard no_grad;
        const at::Tensor gradient = arranged(grad.detach());
        inspect(*hooks, *plan, call_of(name, &gradient));
      });
}

// As a linear layer's (core/modules/linear_layer.cpp), whose weight an attention has not: its query
// says whether it is trained.
bool AttentionLayer::is_evaluation(const at::Tensor& query, bool training) {
  if (training) {
    state_->has_trained = true;
    return false;
  }
  if (recomputation::is_active()) return false;
  return !at::GradMode::is_enabled() || (state_->has_trained && query.requires_grad());
}

ForwardContext AttentionLayer::context_of(const at::Tensor& query, bool training) {
  ForwardContext context;
  if (recomputation::is_replaying()) {
    context = recomputation::replay_context(state_.get(), hooks().name());
  } else if (query.numel() != 0) {
    context.plan = hooks().begin_forward(
        {.like = &query, .evaluation = is_evaluation(query, training), .training_mode = training});
    // Another checkpoint than ours computes anew inside a backward.
    context.recomputation = torch::autograd::get_current_graph_task_id() != -1;
  }
  if (recomputation::is_active()) recomputation::record_context(state_.get(), context);
  return context;
}

AttentionCall AttentionLayer::begin_forward(const at::Tensor& query, bool training) {
  const ForwardContext context = context_of(query, training);
  AttentionCall call;
  if (!context.plan) return call;
  call.hooks_ = std::shared_ptr<LayerHooks>(state_, &state_->hooks);
  call.plan_ = context.plan;
  call.recomputation_ = context.recomputation;
  return call;
}

}  // namespace telens
