#include "core/quantization/autocast.h"

#include <ATen/core/LegacyTypeDispatch.h>
#include <c10/core/GradMode.h>

#include <algorithm>
#include <utility>

#include "core/distributed/amax_reduction.h"
#include "core/quantization/window_updates.h"

namespace telens {
namespace {

std::vector<AutocastState>& stack() {
  static thread_local std::vector<AutocastState> states;
  return states;
}

}  // namespace

void Region::add(const std::shared_ptr<LayerQuantization>& layer,
                 const std::shared_ptr<const DelayedScaling>& recipe,
                 const ProcessGroupPtr& group) {
  // owner_before compares identities without taking a reference; a layer called twice is one.
  const bool known = std::any_of(members_.begin(), members_.end(), [&](const Member& member) {
    return !member.layer.owner_before(layer) && !layer.owner_before(member.layer);
  });
  if (!known) members_.push_back({layer, recipe, group});
}

void Region::update(bool backward) {
  const at::AutoDispatchBelowADInplaceOrView below_autograd;  // spares the boxed autograd fallback
  std::vector<std::pair<std::shared_ptr<LayerQuantization>, const Member*>> alive;
  for (const Member& member : members_) {
    if (auto layer = member.layer.lock()) {
      alive.emplace_back(std::move(layer), &member);
    }
  }
  AmaxReduction reduction;
  for (const auto& [layer, member] : alive) {
    if (member->group && member->recipe->reduce_amax) {
      const AmaxWindow& window = layer->delayed_scaling().window(backward);
      reduction.add(window.amax_history.select(0, 0), member->group);
    }
  }
  reduction.run();
  WindowUpdates updates;
  for (const auto& [layer, member] : alive) {
    updates.add(layer->delayed_scaling().window(backward), *member->recipe, backward);
  }
  updates.run();
}

const AutocastState* current_autocast() { return stack().empty() ? nullptr : &stack().back(); }

Autocast::Autocast(AutocastOptions options) {
  if (!options.recipe) {
    static const auto default_recipe = std::make_shared<const DelayedScaling>();
    options.recipe = default_recipe;
  }
  std::shared_ptr<Region> region =
      stack().empty() ? std::make_shared<Region>() : stack().back().region;
  stack().push_back({std::move(options), std::move(region)});
}

void Autocast::exit() {
  if (!std::exchange(active_, false)) {
    return;
  }
  const std::shared_ptr<Region> region = std::move(stack().back().region);
  const bool updates_scales = stack().back().options.updates_scales;
  stack().pop_back();
  if (stack().empty() && updates_scales && c10::GradMode::is_enabled()) {
    const c10::AutoGradMode no_grad(false);
    region->update(/*backward=*/false);
  }
}

Autocast::~Autocast() {
  try {
    exit();
  } catch (...) {
    // Only a failed reduction throws; the process group reports it again at its next use, and a
    // destructor that runs because of another exception must not replace that one.
  }
}

}  // namespace telens
