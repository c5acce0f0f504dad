#include "core/modules/shared/recomputation.h"

#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <utility>

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
}  // namespace telens
