#include "core/modules/layer/linear_layer.h"

#include <fmt/ranges.h>
#include <torch/csrc/autograd/graph_task.h>

#include <algorithm>
#include <utility>

#include "core/distributed/compare_ranks.h"
#include "core/distributed/gather_sequence.h"
#include "core/modules/layer/altered_operands.h"
#include "core/modules/layer/linear_checks.h"
#include "core/modules/layer/linear_overlap.h"
#include "core/modules/layer/values_of_codes.h"
#include "core/modules/shared/activation_dtype.h"
#include "core/modules/shared/named_errors.h"
#include "core/modules/shared/recomputation.h"
#include "core/modules/shared/wants_gradient.h"
#include "core/ops/backends.h"
#include "core/quantization/carried_codes.h"
#include "core/quantization/tensor_scaling.h"

namespace telens {
namespace {

// Under delayed scaling the codes of all ranks are joined under one scale. `compared`: the names
// of the layer's newest comparison, which a forward under the same ones does not repeat.
void check_shared_scales(const std::string& layer, const LinearParallel& parallel,
                         const DelayedScaling& recipe, const ProcessGroupPtr& amax_group,
                         std::pair<std::string, std::string>& compared) {
  if (!parallel.is_divided() || !parallel.sequence) return;
  const bool reduces = recipe.reduce_amax && amax_group && size_of(*amax_group) >= parallel.size;
  if (!reduces) {
    raise<UsageError>(
        "{}: sequence_parallel joins FP8 codes of {} ranks, which delayed scaling must scale "
        "alike; give fp8_autocast an fp8_group with all ranks of tp_group, and the recipe "
        "reduce_amax=True",
        layer, parallel.size);
  }
  const std::string& tp_group = get_name(*parallel.group);
  const std::string& fp8_group = get_name(*amax_group);
  if (compared.first == tp_group && compared.second == fp8_group) return;
  compare_once_over_ranks(
      {.subject = layer,
       .group_name = "tp_group",
       .text = fmt::format("has the fp8_group '{}'", fp8_group),
       .mend = "sequence_parallel joins their FP8 codes, which delayed scaling must scale alike; "
               "give fp8_autocast one fp8_group that holds all ranks of tp_group"},
      parallel.group);
  compared = {tp_group, fp8_group};
}

// A forward inside a backward is the recomputation of a checkpoint. Only our own checkpoint knows
// the recipe, scales and plan of the first forward.
void check_not_recomputed_unknown(const std::string& layer) {
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

// Shared with the backwards, which may outlive the layer's module.
class LinearLayer::State {
 public:
  GemmLayer layer;
  std::shared_ptr<LayerQuantization> quantization = std::make_shared<LayerQuantization>();
  std::shared_ptr<const HandedCast> input_cast;
  std::shared_ptr<const HandedCast> gradient_cast;

  const std::string& name() const { return layer.name(); }

  // Checks the tensors, then decides how this forward runs.
  ForwardContext begin_checked_forward(const ActivationMeta& input, const LinearCall& call,
                                       const at::Tensor& weight);

  // The codes that the input comes with. Those of ranks that are joined would need one scale.
  const QuantizedTensor* carried_input(const at::Tensor& input, const LinearCall& call,
                                       const ForwardContext& context) const {
    if (call.input_is_whole || layer.parallel.gathers_input() || input.numel() == 0) return nullptr;
    return carried_codes_for(input, context.quantizer(TensorRole::input));
  }

  at::Tensor run_forward(LinearArguments arguments);
  // Makes the run that begins known to its region, and to a checkpoint.
  void announce(ForwardContext& context, bool asks_gradient);

 private:
  ForwardContext begin_forward(const ActivationMeta& input, const LinearCall& call,
                               const at::Tensor& weight);
  void enter_recipe(ForwardContext& context, const AutocastOptions& options,
                    const std::shared_ptr<Region>& region, const at::Device& device);
  void follow_casts(LayerQuantizers& quantizers) const;
  RankClaim claim_forward(std::string text) const;
  void compare_first_forward(const ForwardContext& context, const ActivationMeta& input);
  bool is_evaluation(const LinearCall& call, const at::Tensor& weight);

  AlteredOperands altered_operands_;
  std::pair<std::string, std::string> compared_groups_;  // tp_group and fp8_group, by name
  bool compared_overlap_ = false;
  bool compared_forward_ = false;
  bool ran_quantized_ = false;  // the newest forward did
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
  } catch (const Error& refusal) {
    // The others are on their way to compare.
    const ProcessGroupPtr& group = layer.parallel.group;
    if (layer.parallel.is_divided() && group && !std::exchange(compared_forward_, true)) {
      tell_refusal(claim_forward({}), refusal.what(), group);
    }
    throw;
  }
  ForwardContext context = begin_forward(input, call, weight);
  if (layer.parallel.is_divided() && !context.recomputation) compare_first_forward(context, input);
  const bool gathers = !call.input_is_whole && layer.parallel.gathers_operands();
  if (gathers && !context.recomputation) {
    altered_operands_.compare(context, name(), layer.parallel);
    if (layer.parallel.overlap && !std::exchange(compared_overlap_, true)) {
      layer.parallel.overlap->compare(name(), layer.parallel.group);
    }
  }
  if (context.quantizes()) {
    check_fp8_shapes(name(), layer.hooks.name(), context, input, weight);
  }
  return context;
}

RankClaim LinearLayer::State::claim_forward(std::string text) const {
  return {
      .subject = name(),
      .group_name = "tp_group",
      .text = std::move(text),
      .mend = "give all of its ranks the same layers and as many tokens, under the same autocast"};
}

// Ranks that divide a layer in other ways, run it under other recipes, or bring other inputs would
// wait for each other in collectives that do not fit. All of them come to a layer's first forward.
void LinearLayer::State::compare_first_forward(const ForwardContext& context,
                                               const ActivationMeta& input) {
  if (std::exchange(compared_forward_, true)) return;
  const LinearParallel& parallel = layer.parallel;
  const auto recipe = context.quantizes() ? fmt::format("under {}", context.recipe->name())
                                          : std::string("in high precision");
  compare_over_ranks(
      claim_forward(fmt::format("runs it {}-parallel {} sequence_parallel, {}, on {} {}",
                                parallel.mode == ParallelMode::row ? "row" : "column",
                                parallel.sequence ? "with" : "without", recipe,
                                c10::toString(input.scalar_type()), c10::str(input.sizes()))),
      parallel.group);
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
  if (under_recipe || ran_quantized_) check_not_recomputed_unknown(name());
  ForwardContext context;
  if (autocast != nullptr && (under_recipe || autocast->options.calibrating)) {
    enter_recipe(context, autocast->options, autocast->region, input.device());
  }
  // An empty batch, such as that of an expert without tokens, has nothing to show. It still belongs
  // to the region: ranks whose experts differ must reduce the same amaxes.
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
  const bool trains = recomputation::trains();  // evaluation leaves no trace
  const bool collects_amax = trains || context.calibrating;
  context.quantizers =
      quantization->quantizers(context.recipe, device, collects_amax, layer.hooks.name());
  if (context.recipe->fp8_mha) follow_casts(context.quantizers);
  context.delayed = quantization->followed();
  if (context.delayed == nullptr) return;
  context.region = region;
  if (!collects_amax) return;
  // A request for the weight alone concerns no codes that ranks join.
  const auto follows = [&](TensorRole role) {
    const std::shared_ptr<Quantizer>& quantizer = context.quantizers[role];
    return quantizer && quantizer->follows_history();
  };
  if (follows(TensorRole::input) || follows(TensorRole::grad_output)) {
    check_shared_scales(name(), layer.parallel, *context.delayed, options.group, compared_groups_);
  }
  region->add(quantization, context.delayed, options.group);
  if (trains) region->note_training();
}

void LinearLayer::State::follow_casts(LayerQuantizers& quantizers) const {
  const auto follow = [&](TensorRole role, const std::shared_ptr<const HandedCast>& cast) {
    if (cast && quantizers[role]) quantizers[role] = follow_cast(quantizers[role], cast);
  };
  follow(TensorRole::input, input_cast);
  follow(TensorRole::grad_output, gradient_cast);
}

// Evaluations are recorded apart from the training. Eval mode alone does not tell: frozen parts of
// a model are in eval mode inside a training, and some programs train in eval mode throughout,
// since they have no dropout. So a forward in eval mode belongs to an evaluation if it makes no
// graph, or if the layer, whose weight is trained, has been in training mode before. The first
// forward of a checkpoint makes no graph either, but is training if its caller has gradients on.
bool LinearLayer::State::is_evaluation(const LinearCall& call, const at::Tensor& weight) {
  if (call.training) {
    has_trained_ = true;
    return false;
  }
  if (recomputation::is_training()) return false;
  return !at::GradMode::is_enabled() || (has_trained_ && weight.requires_grad());
}

at::Tensor LinearLayer::State::run_forward(LinearArguments arguments) {
  announce(arguments.context, wants_gradient(arguments.input) ||
                                  wants_gradient(arguments.weight.parameter) ||
                                  wants_gradient(arguments.bias));
  return apply_linear(arguments);
}

void LinearLayer::State::announce(ForwardContext& context, bool asks_gradient) {
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
    at::Tensor values;  // those of codes that the layer does not take
    if (may_have_codes(input)) {
      carried = state_->carried_input(input, call, context);
      if (carried == nullptr) values = values_of_codes(input);
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
  state_->announce(context, asks_gradient);
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
        under_scale(std::move(cast.codes), cast.scale.scale, cast.scale.format, meta.scalar_type());
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
  // The tensors of which each rank quantizes some rows of a whole.
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

void LinearLayer::take_input_cast(std::shared_ptr<const HandedCast> cast) {
  state_->input_cast = std::move(cast);
}

void LinearLayer::take_gradient_cast(std::shared_ptr<const HandedCast> cast) {
  state_->gradient_cast = std::move(cast);
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
