#include "core/modules/linear_operation.h"

#include <torch/csrc/autograd/graph_task.h>

#include <algorithm>
#include <utility>

#include "core/modules/activation_dtype.h"
#include "core/modules/linear_function.h"
#include "core/modules/named_errors.h"
#include "core/modules/recomputation.h"
#include "core/ops/backends.h"
#include "core/quantization/tensor_scaling.h"

namespace telens {
namespace {

using State = LinearOperation::State;

// A forward inside a backward is the recomputation of a checkpoint. Only our own checkpoint knows
// the recipe, scales and plan of the first forward.
void check_not_recomputed_unknown(const State& state, bool under_recipe) {
  const bool inside_backward = torch::autograd::get_current_graph_task_id() != -1;
  if (inside_backward && (under_recipe || state.ran_quantized)) {
    raise<UsageError>(
        "{}: torch.utils.checkpoint recomputes this FP8 layer without its recipe and scales; use "
        "telens.pytorch.checkpoint, or pass context_fn=telens.pytorch.checkpoint_context_fn to "
        "torch's with use_reentrant=False",
        state.name());
  }
}

// What is known of an activation before it is made.
class ActivationOutline {
 public:
  ActivationOutline(at::IntArrayRef sizes, const at::Tensor& like) : sizes_(sizes), like_(like) {}

  at::IntArrayRef sizes() const { return sizes_; }
  std::int64_t numel() const { return c10::multiply_integers(sizes_); }
  at::ScalarType scalar_type() const { return like_.scalar_type(); }
  at::Device device() const { return like_.device(); }
  const at::Tensor& like() const { return like_; }

 private:
  at::IntArrayRef sizes_;
  const at::Tensor& like_;
};

// What is recorded apart from the training. Eval mode alone does not tell: frozen parts of a model
// are in eval mode inside a training, and some programs train in eval mode throughout, since they
// have no dropout. So a forward in eval mode belongs to an evaluation where it makes no graph, or
// where the layer, whose weight is trained, has been in training mode before. A checkpoint's first
// forward makes no graph either.
bool is_evaluation(State& state, const LinearCall& call, const at::Tensor& weight) {
  if (call.training) {
    state.has_trained = true;
    return false;
  }
  if (recomputation::is_active()) return false;
  return !at::GradMode::is_enabled() || (state.has_trained && weight.requires_grad());
}

LayerPass begin_pass(const std::shared_ptr<State>& state, const ActivationOutline& input,
                     const LinearCall& call, const at::Tensor& weight) {
  if (recomputation::is_replaying()) {
    LayerPass pass = recomputation::replayed_pass(state.get(), state->name());
    recomputation::record_pass(state.get(), pass);
    return pass;
  }
  const AutocastState* autocast = current_autocast();
  const bool under_recipe = autocast != nullptr && autocast->options.enabled;
  if (under_recipe || state->ran_quantized) {
    check_not_recomputed_unknown(*state, under_recipe);
  }
  LayerPass pass;
  if (autocast != nullptr && (under_recipe || autocast->options.calibrating)) {
    pass.recipe = autocast->options.recipe;
    pass.calibrating = !under_recipe;
    // Evaluation leaves no trace. A checkpoint's first forward is training, if without gradients.
    const bool trains = at::GradMode::is_enabled() || recomputation::is_active();
    pass.quantizers = state->quantization->quantizers(
        pass.recipe, input.device(), trains || pass.calibrating, state->hooks.name());
    pass.region = autocast->region;
    if (trains || pass.calibrating) {
      pass.region->add(state->quantization, pass.recipe, autocast->options.group);
    }
  }
  // There is nothing to see in an empty batch, such as that of an expert to which no token went. It
  // still belongs to the region: ranks whose experts differ must reduce the same amaxes.
  const RoutingRequest request{.under_recipe = under_recipe,
                               .like = &input.like(),
                               .evaluation = is_evaluation(*state, call, weight)};
  if (input.numel() != 0) pass.plan = state->hooks.begin_forward(request);
  state->ran_quantized = under_recipe;
  return pass;
}

void check_dtypes(const State& state, const ActivationOutline& input, const at::Tensor& weight) {
  const at::ScalarType dtype = input.scalar_type();
  if (dtype != at::kBFloat16 && dtype != at::kHalf && dtype != at::kFloat && dtype != at::kDouble) {
    raise<ShapeError>("{}: activation has dtype {}; expected BFloat16, Half, Float or Double",
                      state.name(), c10::toString(dtype));
  }
  if (weight.scalar_type() != dtype && !at::autocast::is_autocast_enabled(input.device().type())) {
    raise<ShapeError>(
        "{}: activation has dtype {} and weight {}; outside torch.autocast they must be the same; "
        "convert one, or use torch.autocast",
        state.name(), c10::toString(dtype), c10::toString(weight.scalar_type()));
  }
}

void check_shapes(const State& state, const ActivationOutline& input, const at::Tensor& weight) {
  if (input.sizes().empty() || input.sizes().back() != weight.size(1)) {
    raise<ShapeError>("{}: activation has shape {}; expected [..., {}]", state.name(),
                      c10::str(input.sizes()), weight.size(1));
  }
  if (input.device() != weight.device()) {
    raise<ShapeError>("{}: activation is on {} and weight on {}; move one of them", state.name(),
                      input.device().str(), weight.device().str());
  }
}

// FP8 GEMMs on GPUs take features in multiples of 16, and a run that works here works there. Tokens
// may be any number: the GEMM pads them (core/quantization/token_padding.h).
void check_fp8_shapes(const State& state, const LayerPass& pass, const ActivationOutline& input,
                      const at::Tensor& weight) {
  if (input.scalar_type() == at::kDouble) {
    raise<ShapeError>("{}: activation has dtype Double; FP8 takes BFloat16, Half or Float",
                      state.name());
  }
  // A custom recipe may leave tensors in high precision.
  const auto alignment_of = [&](TensorRole role) -> std::int64_t {
    return pass.quantizers[role] ? pass.quantizers[role]->alignment() : 1;
  };
  const std::int64_t alignment =
      std::max({alignment_of(TensorRole::input), alignment_of(TensorRole::weight),
                alignment_of(TensorRole::grad_output)});
  if (weight.size(0) % alignment != 0 || weight.size(1) % alignment != 0) {
    raise<ShapeError>(
        "{}: weight has shape {}; FP8 GEMMs need both of its dimensions divisible by {}; give the "
        "layer such features, or run it outside fp8_autocast",
        state.name(), c10::str(weight.sizes()), alignment);
  }
}

void check_tensor_parallel(State& state) {
  const TensorParallel tensor_parallel = state.hooks.tensor_parallel();
  if (tensor_parallel.size > 1 && tensor_parallel.group == nullptr) [[unlikely]] {
    raise<UsageError>(
        "{}: tp_size is {} and there is no tp_group; call set_tensor_parallel_group before the "
        "first forward, or give the module tp_group",
        state.name(), tensor_parallel.size);
  }
}

LayerPass checked_pass(const std::shared_ptr<State>& state, const ActivationOutline& input,
                       const LinearCall& call, const at::Tensor& weight) {
  check_tensor_parallel(*state);
  check_dtypes(*state, input, weight);
  check_shapes(*state, input, weight);
  ops::check_runs_on(input.device(), state->name());
  LayerPass pass = begin_pass(state, input, call, weight);
  if (pass.quantizes()) {
    check_fp8_shapes(*state, pass, input, weight);
  }
  return pass;
}

at::Tensor run_pass(LinearArguments arguments) {
  LayerPass& pass = arguments.pass;
  const at::Tensor& bias = arguments.bias;
  const bool asks_gradient =
      at::GradMode::is_enabled() &&
      (arguments.input.requires_grad() || arguments.weight.parameter.requires_grad() ||
       (bias.defined() && bias.requires_grad()));
  if (pass.region && !pass.recomputation && pass.recipe->as_delayed_scaling() != nullptr &&
      (asks_gradient || recomputation::is_active())) {
    pass.first_in_region = pass.region->claim_first();
  }
  if (recomputation::is_active() && !pass.recomputation) {
    recomputation::record_pass(arguments.state.get(), pass);
  }
  return apply_linear(arguments);
}

}  // namespace

const std::string& LinearOperation::State::name() const {
  return hooks.name().empty() ? kind : hooks.name();
}

LinearOperation::LinearOperation(std::string name, std::string kind)
    : state_(std::make_shared<State>()) {
  state_->kind = std::move(kind);
  if (!name.empty()) {
    state_->hooks.set_name(std::move(name));
  }
}

at::Tensor LinearOperation::operator()(const at::Tensor& input, const Weight& weight,
                                       const at::Tensor& bias, const LinearCall& call) {
  return naming_layer(state_->name(), [&] {
    const at::Tensor activation = to_activation_dtype(input);
    LayerPass pass = checked_pass(state_, {activation.sizes(), activation}, call, weight.parameter);
    return run_pass({activation, weight, bias, call, state_, std::move(pass)});
  });
}

at::Tensor LinearOperation::operator()(const ActivationSource& input, const Weight& weight,
                                       const at::Tensor& bias, const LinearCall& call) {
  return naming_layer(state_->name(), [&] {
    const ActivationOutline outline(input.sizes, input.like);
    LayerPass pass = checked_pass(state_, outline, call, weight.parameter);
    const bool needs_wgrad = at::GradMode::is_enabled() && weight.parameter.requires_grad();
    auto scale = scale_of_fused_cast(pass, TensorName::activation, true, needs_wgrad);
    if (!scale || outline.numel() == 0) {
      return run_pass({input.make(nullptr), weight, bias, call, state_, std::move(pass)});
    }
    FusedCast cast{.scale = std::move(*scale)};
    const at::Tensor placeholder = input.make(&cast);
    const QuantizedTensor codes = under_scale(std::move(cast.codes), cast.scale.scale,
                                              cast.scale.format, outline.scalar_type());
    return run_pass({placeholder, weight, bias, call, state_, std::move(pass), &codes});
  });
}

}  // namespace telens
