#include "core/modules/attention/attention_layer.h"

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/graph_task.h>

#include <utility>

#include "core/base/error.h"
#include "core/modules/shared/recomputation.h"

namespace telens {
namespace {

void inspect(LayerHooks& hooks, const RoutingPlan& plan, const InspectTensorCall& call) {
  const at::AutoDispatchBelowADInplaceOrView below_autograd;  // as in linear layers
  const hook_points::ListenerCall listener(plan);
  if (listener) listener->inspect_tensor(hooks, plan, call);
}

InspectTensorCall get_call(TensorName name, const at::Tensor* tensor) {
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
  inspect(*hooks_, *plan_, get_call(name, &detached));
}

void AttentionCall::show_scores(const ops::AttentionScores& scores) const {
  if (!inspects(TensorName::scores) || recomputation_) return;
  InspectTensorCall call = get_call(TensorName::scores, nullptr);
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
        inspect(*hooks, *plan, get_call(name, &gradient));
      });
}

// Like LinearLayer's (core/modules/layer/linear_layer.cpp). An attention does not have a weight;
// the query's requires_grad decides whether it is trained.
bool AttentionLayer::is_evaluation(const Request& request) {
  if (request.training) {
    state_->has_trained = true;
    return false;
  }
  if (recomputation::is_training()) return false;
  return !at::GradMode::is_enabled() || (state_->has_trained && request.query.requires_grad());
}

// Calibration applies only to layers whose GEMMs will run in FP8; attention is unchanged.
void AttentionLayer::enter_recipe(ForwardContext& context) {
  const AutocastState* autocast = current_autocast();
  std::shared_ptr<const Recipe> recipe;
  if (autocast != nullptr && autocast->options.enabled && autocast->options.recipe->fp8_dpa) {
    recipe = state_->recipes.of(autocast->options.recipe);
  }
  const bool quantizes = recipe != nullptr;
  const bool inside_backward = torch::autograd::get_current_graph_task_id() != -1;
  if (inside_backward && (quantizes || state_->ran_quantized)) {
    raise<UsageError>(
        "{}: torch.utils.checkpoint recomputes this FP8 attention without its recipe and scales; "
        "use telens.pytorch.checkpoint, or pass context_fn=telens.pytorch.checkpoint_context_fn to "
        "torch's with use_reentrant=False",
        name());
  }
  state_->ran_quantized = quantizes;
  if (!quantizes) return;
  context.recipe = std::move(recipe);
  context.region = autocast->region;
}

const std::string& AttentionLayer::name() {
  static const std::string kind = "DotProductAttention";
  return hooks().name().empty() ? kind : hooks().name();
}

ForwardContext AttentionLayer::make_context(const Request& request) {
  const at::Tensor& query = request.query;
  ForwardContext context;
  if (recomputation::is_replaying()) {
    context = recomputation::replay_context(state_.get(), name());
  } else {
    enter_recipe(context);
    if (query.numel() != 0) {
      context.plan = hooks().begin_forward({.like = &query,
                                            .evaluation = is_evaluation(request),
                                            .training_mode = request.training});
      // A checkpoint other than te.checkpoint recomputes inside a backward.
      context.recomputation = torch::autograd::get_current_graph_task_id() != -1;
    }
  }
  if (recomputation::is_active()) recomputation::record_context(state_.get(), context);
  return context;
}

std::optional<Fp8Attention> AttentionLayer::get_quantizers(const ForwardContext& context,
                                                           const Request& request) {
  if (context.recipe == nullptr) return std::nullopt;
  AttentionQuantization& quantization = state_->quantization;
  const bool asks_gradient = has_fp8_backward() && request.asks_gradient();
  Fp8Attention fp8 = recomputation::is_replaying()
                         ? quantization.begin_again(asks_gradient, name())
                         : quantization.begin(context, current_autocast()->options,
                                              request.query.device(), asks_gradient, name());
  if (request.fp8_output && fp8.quantizers.o == nullptr) {
    raise<UsageError>(
        "{}: fp8_output=True, but its recipe does not quantize the output of attention; pass "
        "fp8_output=False, or use a recipe with delayed or current scaling",
        name());
  }
  fp8.attaches_output = request.fp8_output;
  return fp8;
}

AttentionCall AttentionLayer::begin_forward(const Request& request) {
  const ForwardContext context = make_context(request);
  AttentionCall call;
  call.fp8_ = get_quantizers(context, request);
  if (!context.plan) return call;
  call.hooks_ = std::shared_ptr<LayerHooks>(state_, &state_->hooks);
  call.plan_ = context.plan;
  call.recomputation_ = context.recomputation;
  return call;
}

}  // namespace telens
