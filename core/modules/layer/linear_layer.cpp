#include "core/modules/layer/linear_layer.h"

#include <torch/csrc/autograd/graph_task.h>

#include <algorithm>
#include <utility>

#include "core/distributed/collectives.h"
#include "core/modules/layer/gemm_operands.h"
#include "core/modules/layer/linear_checks.h"
#include "core/modules/shared/activation_dtype.h"
#include "core/modules/shared/autograd_utils.h"
#include "core/modules/shared/recomputation.h"
#include "core/ops/device.h"
#include "core/quantization/current_scaling.h"
#include "core/quantization/quantized_payload.h"

namespace telens {
namespace {

// A forward inside a backward is the recomputation of a checkpoint. Only te.checkpoint restores
// recipe, scales and plan of the first forward.
void check_recomputed_by_telens(const std::string& layer) {
  const bool inside_backward = torch::autograd::get_current_graph_task_id() != -1;
  if (inside_backward) {
    raise<UsageError>(
        "{}: torch.utils.checkpoint recomputes this FP8 layer without its recipe and scales; use "
        "telens.pytorch.checkpoint, or pass context_fn=telens.pytorch.checkpoint_context_fn to "
        "torch's with use_reentrant=False",
        layer);
  }
}

}  // namespace

// Shared with backwards, which may outlive the layer's module.
class LinearLayer::State {
 public:
  GemmLayer layer;
  std::shared_ptr<LayerQuantization> quantization = std::make_shared<LayerQuantization>();
  std::shared_ptr<const SharedScale> input_scale;
  std::shared_ptr<const SharedScale> gradient_scale;

  const std::string& name() const { return layer.name(); }

  // Checks the tensors and decides how this forward runs.
  ForwardContext begin_checked_forward(const ActivationMeta& input, const LinearCall& call,
                                       const at::Tensor& weight);

  // Returns the input's payload if it is reusable. Gathered codes would need a common scale.
  const QuantizedTensor* reusable_input(const at::Tensor& input, const LinearCall& call,
                                        const ForwardContext& context) const {
    if (call.input_is_whole || layer.parallel.gathers_input() || input.numel() == 0) return nullptr;
    return find_reusable(input, context.quantizer(TensorRole::input));
  }

  at::Tensor run_forward(LinearArguments arguments);
  // Registers the forward with its region and with recording checkpoints.
  void register_forward(ForwardContext& context, bool asks_gradient);

 private:
  ForwardContext begin_forward(const ActivationMeta& input, const LinearCall& call,
                               const at::Tensor& weight);
  void enter_recipe(ForwardContext& context, const AutocastOptions& options,
                    const std::shared_ptr<Region>& region, const at::Device& device);
  void use_shared_scales(LayerQuantizers& quantizers) const;
  bool is_evaluation(const LinearCall& call, const at::Tensor& weight);

  ParallelChecks parallel_checks_;
  bool ran_quantized_ = false;  // the most recent forward
  bool has_trained_ = false;    // a forward in training mode ran
};

ForwardContext LinearLayer::State::begin_checked_forward(const ActivationMeta& input,
                                                         const LinearCall& call,
                                                         const at::Tensor& weight) {
  try {
    check_tensor_parallel(name(), layer.hooks.tensor_parallel());
    check_dtypes(name(), input, weight);
    check_shapes(name(), input, weight);
    if (!call.input_is_whole) check_sequence(name(), layer.parallel, input);
    ops::check_runs_on(input.device(), name());
  } catch (const Error& error) {
    // Other ranks will block in the first-forward comparison: report the error to them.
    parallel_checks_.report_rejected_forward(name(), layer.parallel, error.what());
    throw;
  }
  ForwardContext context = begin_forward(input, call, weight);
  parallel_checks_.compare_first_forward(name(), layer.parallel, context, input);
  if (!call.input_is_whole && layer.parallel.gathers_operands()) {
    parallel_checks_.compare_operands(name(), layer.parallel, context);
  }
  if (context.quantizes()) {
    check_fp8_shapes(name(), context, input, weight);
  }
  return context;
}

ForwardContext LinearLayer::State::begin_forward(const ActivationMeta& input,
                                                 const LinearCall& call, const at::Tensor& weight) {
  if (recomputation::is_replaying()) {
    ForwardContext context = recomputation::replay_context(this, name());
    recomputation::record_context(this, context);
    return context;
  }
  const AutocastState* autocast = current_autocast();
  const bool under_recipe = autocast != nullptr && autocast->options.enabled;
  if (under_recipe || ran_quantized_) check_recomputed_by_telens(name());
  ForwardContext context;
  if (autocast != nullptr && (under_recipe || autocast->options.calibrating)) {
    enter_recipe(context, autocast->options, autocast->region, input.device());
  }
  // Features do not see an empty batch, for example an expert without tokens. The layer still
  // belongs to the region: ranks with different experts must reduce the same amaxes.
  const RoutingRequest request{.under_recipe = under_recipe,
                               .like = &input.like(),
                               .evaluation = is_evaluation(call, weight),
                               .training_mode = call.training};
  if (input.numel() != 0) context.plan = layer.hooks.begin_forward(request);
  ran_quantized_ = under_recipe;
  return context;
}

void LinearLayer::State::enter_recipe(ForwardContext& context, const AutocastOptions& options,
                                      const std::shared_ptr<Region>& region,
                                      const at::Device& device) {
  context.recipe = options.recipe;
  context.calibrating = !options.enabled;
  const bool trains = recomputation::trains();  // evaluation records no amax
  const bool collects_amax = trains || context.calibrating;
  context.quantizers =
      quantization->quantizers(context.recipe, device, collects_amax, layer.hooks.name());
  if (context.recipe->fp8_mha) use_shared_scales(context.quantizers);
  context.delayed = quantization->followed();
  if (context.delayed == nullptr) return;
  context.region = region;
  if (!collects_amax) return;
  // A custom recipe's request for only the weight does not affect gathered operands.
  const auto follows = [&](TensorRole role) {
    const std::shared_ptr<Quantizer>& quantizer = context.quantizers[role];
    return quantizer && quantizer->follows_history();
  };
  if (follows(TensorRole::input) || follows(TensorRole::grad_output)) {
    parallel_checks_.check_shared_scales(name(), layer.parallel, *context.delayed, options.group);
  }
  region->add(quantization, context.delayed, options.group);
  if (trains) region->note_training();
}

void LinearLayer::State::use_shared_scales(LayerQuantizers& quantizers) const {
  const auto follow = [&](TensorRole role, const std::shared_ptr<const SharedScale>& scale) {
    if (scale && quantizers[role]) quantizers[role] = use_shared_scale(quantizers[role], scale);
  };
  follow(TensorRole::input, input_scale);
  follow(TensorRole::grad_output, gradient_scale);
}

// Evaluations are recorded separately. Eval mode does not imply an evaluation: frozen parts of a
// model are in eval mode during training, and some programs without dropout train in eval mode. A
// forward in eval mode is an evaluation if it builds no graph, or if the layer's weight is trained
// and the layer has been in training mode before. The first forward of a checkpoint builds no
// graph, but is training if its caller has gradients enabled.
bool LinearLayer::State::is_evaluation(const LinearCall& call, const at::Tensor& weight) {
  if (call.training) {
    has_trained_ = true;
    return false;
  }
  if (recomputation::is_training()) return false;
  return !at::GradMode::is_enabled() || (has_trained_ && weight.requires_grad());
}

at::Tensor LinearLayer::State::run_forward(LinearArguments arguments) {
  register_forward(arguments.context, wants_gradient(arguments.input) ||
                                          wants_gradient(arguments.weight.parameter) ||
                                          wants_gradient(arguments.bias));
  return apply_linear(arguments);
}

void LinearLayer::State::register_forward(ForwardContext& context, bool asks_gradient) {
  recomputation::claim_region_end(context, asks_gradient);
  if (recomputation::is_active() && !context.recomputation) {
    recomputation::record_context(this, context);
  }
}

LinearLayer::LinearLayer(std::string name, std::string kind) : state_(std::make_shared<State>()) {
  state_->layer.kind = std::move(kind);
  if (!name.empty()) hooks().set_name(std::move(name));
}

at::Tensor LinearLayer::operator()(const at::Tensor& input, const Weight& weight,
                                   const at::Tensor& bias, const LinearCall& call) {
  const at::Tensor activation = naming_layer(name(), [&] { return to_activation_dtype(input); });
  ForwardContext context = begin(activation.sizes(), activation, weight, call);
  return run(std::move(context), activation, weight, bias, call);
}

ForwardContext LinearLayer::begin(at::IntArrayRef sizes, const at::Tensor& like,
                                  const Weight& weight, const LinearCall& call) {
  return naming_layer(name(), [&] {
    return state_->begin_checked_forward({sizes, like}, call, weight.parameter);
  });
}

at::Tensor LinearLayer::run(ForwardContext context, const at::Tensor& input, const Weight& weight,
                            const at::Tensor& bias, const LinearCall& call) {
  return naming_layer(name(), [&] {
    const QuantizedTensor* carried = nullptr;
    at::Tensor values;  // of a handle whose payload is not reusable
    if (may_have_quantized(input)) {
      carried = state_->reusable_input(input, call, context);
      if (carried == nullptr) values = dequantize_handle(input);
    }
    return state_->run_forward({.input = values.defined() ? values : input,
                                .weight = weight,
                                .bias = bias,
                                .call = call,
                                .layer = {state_, &state_->layer},
                                .context = std::move(context),
                                .carried = carried});
  });
}

LinearArguments LinearLayer::prepare(ForwardContext context, const at::Tensor& input,
                                     const Weight& weight, const at::Tensor& bias,
                                     const LinearCall& call, bool asks_gradient) {
  state_->register_forward(context, asks_gradient);
  return {.input = input,
          .weight = weight,
          .bias = bias,
          .call = call,
          .layer = {state_, &state_->layer},
          .context = std::move(context)};
}

at::Tensor LinearLayer::operator()(const ActivationSource& input, const Weight& weight,
                                   const at::Tensor& bias, const LinearCall& call) {
  return naming_layer(state_->name(), [&] {
    const ActivationMeta meta(input.sizes, input.like);
    ForwardContext context = state_->begin_checked_forward(meta, call, weight.parameter);
    const std::shared_ptr<GemmLayer> layer(state_, &state_->layer);
    const bool needs_wgrad = wants_gradient(weight.parameter);
    auto scale = fused_cast_scale(context, TensorName::activation, true, needs_wgrad);
    if (!scale || meta.numel() == 0) {
      return state_->run_forward(
          {input.make(nullptr), weight, bias, call, layer, std::move(context)});
    }
    FusedCast cast{.scale = std::move(*scale)};
    const at::Tensor placeholder = input.make(&cast);
    const QuantizedTensor codes =
        wrap_codes(std::move(cast.codes), cast.scale.scale, cast.scale.format, meta.scalar_type());
    return state_->run_forward(
        {placeholder, weight, bias, call, layer, std::move(context), &codes});
  });
}

void LinearLayer::set_parallel(LinearParallel parallel) {
  state_->layer.parallel = std::move(parallel);
  set_tensor_parallel_group(state_->layer.parallel.group);
}

const LinearParallel& LinearLayer::parallel() const { return state_->layer.parallel; }

void LinearLayer::set_tensor_parallel_group(const ProcessGroupPtr& group) {
  LinearParallel& parallel = state_->layer.parallel;
  if (group && parallel.is_divided() && size_of(*group) != parallel.size) {
    raise<UsageError>("{}: tp_group has {} ranks; the layer is divided among tp_size={}",
                      state_->name(), size_of(*group), parallel.size);
  }
  parallel.group = group;
  hooks().set_tensor_parallel(group, parallel.size);
  // The tensors of which each rank quantizes part of the rows.
  if (parallel.gathers_input()) quantization().reduce_amaxes_over(TensorRole::input, group);
  if (parallel.gathers_gradient()) {
    quantization().reduce_amaxes_over(TensorRole::grad_output, group);
  }
}

DelayedWgrads& LinearLayer::delayed_wgrads() { return state_->layer.delayed_wgrads; }

bool LinearLayer::run_delayed_wgrad(const std::function<void(const DelayedWgrad&)>& take) {
  return naming_layer(state_->name(), [&] {
    return state_->layer.delayed_wgrads.run_oldest({state_, &state_->layer}, take);
  });
}

const std::string& LinearLayer::name() const { return state_->name(); }

LayerHooks& LinearLayer::hooks() { return state_->layer.hooks; }

void LinearLayer::set_input_scale(std::shared_ptr<const SharedScale> scale) {
  state_->input_scale = std::move(scale);
}

void LinearLayer::set_gradient_scale(std::shared_ptr<const SharedScale> scale) {
  state_->gradient_scale = std::move(scale);
}

void LinearLayer::join(const std::shared_ptr<ModuleWindows>& windows) {
  state_->quantization = std::make_shared<LayerQuantization>(windows);
}

at::Tensor gather_normalized(const at::Tensor& normalized, const LinearLayer& layer,
                             LinearCall& call) {
  call.input_is_whole = true;
  return gather_sequence(normalized, layer.parallel().group);
}

LayerQuantization& LinearLayer::quantization() { return *state_->quantization; }
const LayerQuantization& LinearLayer::quantization() const { return *state_->quantization; }

}  // namespace telens
