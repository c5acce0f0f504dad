#include "core/modules/shared/recomputation.h"

#include <ATen/Context.h>
#include <ATen/core/Generator.h>
#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>
#include <mutex>
#include <utility>

#include "core/modules/shared/autograd_utils.h"

namespace telens {
namespace {

struct ActiveScope {
  std::shared_ptr<RecomputationTape> tape;
  RecomputationScope::Mode mode;
  bool hides_gradients;  // the checkpoint itself disabled them
};

std::vector<ActiveScope>& scopes() {
  static thread_local std::vector<ActiveScope> active;
  return active;
}

bool replays(const ActiveScope& scope) { return scope.mode == RecomputationScope::Mode::replay; }
bool is_of_training(const ActiveScope& scope) { return scope.tape->trains(); }
bool hides(const ActiveScope& scope) { return scope.hides_gradients; }
bool hides_a_backward(const ActiveScope& scope) {
  return scope.hides_gradients && scope.tape->has_backward();
}

// Returns quantizers with the present scales that record no amax.
LayerQuantizers frozen(const LayerQuantizers& quantizers) {
  LayerQuantizers copy = quantizers;
  for (const TensorRole role : {TensorRole::input, TensorRole::weight, TensorRole::output}) {
    const at::Tensor scale = copy[role] ? copy[role]->known_scale() : at::Tensor();
    if (scale.defined()) copy[role] = copy[role]->frozen_at(scale.clone());
  }
  return copy;
}

}  // namespace

RecomputationTape::RecomputationTape() : trains_(at::GradMode::is_enabled()) {}

void RecomputationTape::append(const void* layer, ForwardContext context) {
  entries_.push_back({layer, std::move(context)});
}

ForwardContext RecomputationTape::next(const void* layer, const std::string& name) {
  if (position_ >= entries_.size() || entries_[position_].layer != layer) {
    raise<UsageError>(
        "{}: the recomputation of a checkpointed function runs other layers than its first "
        "forward did; make the function run the same layers each time",
        name);
  }
  return entries_[position_++].context;
}

RecomputationScope::RecomputationScope(std::shared_ptr<RecomputationTape> tape, Mode mode) {
  if (mode == Mode::replay) {
    tape->rewind();
  }
  const bool hides_gradients = tape->trains() && !at::GradMode::is_enabled();
  scopes().push_back({std::move(tape), mode, hides_gradients});
  recomputation::all_scopes.fetch_add(1, std::memory_order_relaxed);
}

RecomputationScope::~RecomputationScope() {
  recomputation::all_scopes.fetch_sub(1, std::memory_order_relaxed);
  scopes().pop_back();
}

namespace recomputation {

std::atomic<int> all_scopes{0};

bool is_active_here() { return !scopes().empty(); }

bool is_replaying_here() { return std::any_of(scopes().begin(), scopes().end(), replays); }

bool is_training_here() { return std::any_of(scopes().begin(), scopes().end(), is_of_training); }

bool hides_gradients_here() { return std::any_of(scopes().begin(), scopes().end(), hides); }

bool hides_backward_here() {
  return std::any_of(scopes().begin(), scopes().end(), hides_a_backward);
}

bool trains() { return at::GradMode::is_enabled() || hides_gradients(); }

ForwardContext replay_context(const void* layer, const std::string& name) {
  const auto innermost = std::find_if(scopes().rbegin(), scopes().rend(), replays);
  ForwardContext context = innermost->tape->next(layer, name);
  context.recomputation = true;
  return context;
}

void claim_region_end(ForwardContext& context, bool asks_gradient) {
  if (context.region == nullptr) return;
  const bool hidden = hides_backward();
  if (!context.recomputation) {
    if (asks_gradient || hidden) context.first_in_region = context.region->claim_first();
    return;
  }
  if (hidden || asks_gradient == context.first_in_region) return;
  if (asks_gradient) {
    context.first_in_region = context.region->claim_first();
  } else {
    context.first_in_region = false;
    context.region->release_first();
  }
}

void record_context(const void* layer, const ForwardContext& context) {
  ForwardContext kept = context;
  kept.quantizers = frozen(context.quantizers);
  for (const ActiveScope& scope : scopes()) {
    if (!replays(scope)) {
      scope.tape->append(layer, kept);
    }
  }
}

}  // namespace recomputation

// ---- checkpointed_call

namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// The state of the second call in addition to its inputs.
struct FirstCall : torch::CustomClassHolder {
  TensorFunction function;
  at::Generator generator;
  at::Tensor random_state;  // undefined if it draws nothing
};

at::Tensor get_state(at::Generator& generator) {
  const std::scoped_lock lock(generator.mutex());
  return generator.get_state();
}

void set_state(at::Generator& generator, const at::Tensor& state) {
  const std::scoped_lock lock(generator.mutex());
  generator.set_state(state);
}

// Sets the generator to the state of the first call; restores it at the end, also after an error.
class RandomStateGuard {
 public:
  RandomStateGuard(at::Generator generator, const at::Tensor& state)
      : generator_(std::move(generator)) {
    if (!state.defined()) return;
    present_ = get_state(generator_);
    set_state(generator_, state);
  }
  ~RandomStateGuard() {
    if (present_.defined()) set_state(generator_, present_);
  }
  RandomStateGuard(const RandomStateGuard&) = delete;
  RandomStateGuard& operator=(const RandomStateGuard&) = delete;
  RandomStateGuard(RandomStateGuard&&) = delete;
  RandomStateGuard& operator=(RandomStateGuard&&) = delete;

 private:
  at::Generator generator_;
  at::Tensor present_;
};

// Detaches the inputs and keeps their requires_grad.
variable_list detached_leaves(at::TensorList inputs) {
  variable_list leaves;
  for (const at::Tensor& input : inputs) {
    leaves.push_back(input.detach().set_requires_grad(input.requires_grad()));
  }
  return leaves;
}

struct CallOptions {
  bool draws;
  bool with_grad;  // gradient mode of the caller; autograd functions disable it
};

class CheckpointedCall : public torch::autograd::Function<CheckpointedCall> {
 public:
  static at::Tensor forward(AutogradContext* context, const TensorFunction& function,
                            const CallOptions& options, at::TensorList inputs) {
    auto first = c10::make_intrusive<FirstCall>();
    first->function = function;
    if (options.draws) {
      first->generator = at::globalContext().defaultGenerator(inputs[0].device());
      first->random_state = get_state(first->generator);
    }
    context->saved_data["call"] = c10::IValue::make_capsule(std::move(first));
    context->save_for_backward(inputs.vec());
    // LibTorch chooses kernels by requires_grad, and another kernel could give other bits, so both
    // calls use the same gradient mode. The first graph is freed with the result.
    const at::AutoGradMode with_grad(options.with_grad);
    return function(detached_leaves(inputs)).detach();
  }

  static variable_list backward(AutogradContext* context, const variable_list& grads) {
    check_no_second_derivative("checkpoint_core_attention");
    const auto holder = context->saved_data["call"].toCapsule();
    auto& first = static_cast<FirstCall&>(*holder);
    const variable_list inputs = detached_leaves(context->get_saved_variables());
    variable_list wanted;
    for (const at::Tensor& input : inputs) {
      if (input.requires_grad()) wanted.push_back(input);
    }
    at::Tensor result;
    {
      const RandomStateGuard same_numbers(first.generator, first.random_state);
      const at::AutoGradMode with_grad(true);
      result = first.function(inputs);
    }
    // The result may not depend on some inputs.
    const variable_list made =
        result.requires_grad()
            ? torch::autograd::grad({result}, wanted, {grads[0]}, std::nullopt,
                                    /*create_graph=*/false, /*allow_unused=*/true)
            : variable_list(wanted.size());
    variable_list all(2);  // for `function` and `options`
    std::size_t next = 0;
    for (const at::Tensor& input : inputs) {
      all.push_back(input.requires_grad() ? made[next++] : at::Tensor());
    }
    return all;
  }
};

}  // namespace

at::Tensor checkpointed_call(const TensorFunction& function, const std::vector<at::Tensor>& inputs,
                             bool draws) {
  // Autograd functions do not accept undefined tensors.
  std::vector<at::Tensor> given;
  std::vector<bool> is_given;
  for (const at::Tensor& input : inputs) {
    is_given.push_back(input.defined());
    if (input.defined()) given.push_back(input);
  }
  const TensorFunction of_given = [function, is_given](const std::vector<at::Tensor>& tensors) {
    std::vector<at::Tensor> all(is_given.size());
    auto next = tensors.begin();
    for (std::size_t i = 0; i < all.size(); ++i) {
      if (is_given[i]) all[i] = *next++;
    }
    return function(all);
  };
  return CheckpointedCall::apply(
      of_given, CallOptions{.draws = draws, .with_grad = at::GradMode::is_enabled()},
      at::TensorList(given));
}

}  // namespace telens
