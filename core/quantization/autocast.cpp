#include "core/quantization/autocast.h"

#include <ATen/core/LegacyTypeDispatch.h>
#include <c10/core/GradMode.h>
#include <fmt/format.h>

#include <algorithm>
#include <exception>
#include <utility>

#include "core/base/error.h"
#include "core/distributed/collectives.h"
#include "core/distributed/compare_ranks.h"
#include "core/quantization/delayed_scaling.h"

namespace telens {
namespace {

std::vector<AutocastState>& stack() {
  static thread_local std::vector<AutocastState> states;
  return states;
}

// A rank whose recipe does not reduce would leave the other ranks of its group waiting. The
// outermost region announces for nested ones.
void announce_amaxes(const AutocastState& state) {
  if (!state.options.group || size_of(*state.options.group) == 1) return;
  const std::int64_t count = state.region->count_reduced(state.options.group);
  announce_reduction(
      {.subject = "autocast",
       .group_name = "amax_reduction_group (fp8_group)",
       .text = count > 0
                   ? fmt::format("{} with {} amaxes to reduce", state.options.recipe->name(), count)
                   : fmt::format("{} with nothing to reduce", state.options.recipe->name()),
       .reduces = count > 0,
       .hint = "give all of them one recipe and the same layers"},
      state.options.group);
}

}  // namespace

void Region::add(const std::shared_ptr<LayerQuantization>& layer,
                 const std::shared_ptr<const DelayedScaling>& recipe,
                 const ProcessGroupPtr& group) {
  // owner_before compares identities without taking a reference. A layer that runs twice is one
  // member.
  const bool known = std::any_of(members_.begin(), members_.end(), [&](const Member& member) {
    return !member.layer.owner_before(layer) && !layer.owner_before(member.layer);
  });
  if (!known) members_.push_back({layer, recipe, group});
}

void Region::update(bool backward) {
  const at::AutoDispatchBelowADInplaceOrView below_autograd;  // avoids the boxed autograd fallback
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
    updates.add(layer->delayed_scaling().window(backward), *member->recipe, backward,
                layer->layer());
  }
  updates.run();
}

std::int64_t Region::count_reduced(const ProcessGroupPtr& group) const {
  std::int64_t count = 0;
  for (const Member& member : members_) {
    const auto layer = member.layer.lock();
    if (!layer || member.group != group || !member.recipe->reduce_amax) continue;
    count += layer->delayed_scaling().window(/*backward=*/false).amax_history.size(1);
  }
  return count;
}

const AutocastState* current_autocast() { return stack().empty() ? nullptr : &stack().back(); }

Autocast::Autocast(AutocastOptions options) : exceptions_(std::uncaught_exceptions()) {
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
  const AutocastState left = std::move(stack().back());
  stack().pop_back();
  const bool trained = c10::GradMode::is_enabled() || left.region->has_trained();
  if (stack().empty() && left.options.updates_scales && trained) {
    const c10::AutoGradMode no_grad(false);
    announce_amaxes(left);
    left.region->update(/*backward=*/false);
  }
}

void Autocast::abandon() {
  if (std::exchange(active_, false)) stack().pop_back();
}

Autocast::~Autocast() {
  try {
    if (std::uncaught_exceptions() > exceptions_) abandon();
    exit();
  } catch (...) {
    // Only a failed reduction throws; the process group reports it again at its next use.
  }
}

GraphedLayers::GraphedLayers(const std::vector<LayerQuantization*>& layers,
                             const std::shared_ptr<const void>& owner,
                             const GraphedLayers* earlier) {
  for (LayerQuantization* each : layers) {
    if (each->recipe() == nullptr || each->followed(each->recipe()) == nullptr) continue;
    std::shared_ptr<LayerQuantization> layer = earlier ? earlier->find(each) : nullptr;
    // A region identifies a layer by its owner, so each layer has one, shared by all graphs.
    if (!layer) layer = {each, [owner](LayerQuantization*) {}};
    layers_.emplace_back(std::move(layer), find_addresses(*each));
  }
}

void GraphedLayers::join_region() const {
  const AutocastState* state = current_autocast();
  if (state == nullptr) return;
  for (const auto& [layer, captured] : layers_) {
    if (find_addresses(*layer) == captured) continue;
    raise<UsageError>(
        "a graph writes amaxes into a history that its layer no longer has, since a recipe with "
        "another amax_history_len or a change of the device made it a new one; capture again");
  }
  for (const auto& [layer, captured] : layers_) {
    const auto delayed = layer->followed(state->options.recipe);
    if (delayed != nullptr) state->region->add(layer, delayed, state->options.group);
  }
}

GraphedLayers::Addresses GraphedLayers::find_addresses(LayerQuantization& layer) {
  const auto address = [&](bool backward) -> const void* {
    const AmaxWindow& window = layer.delayed_scaling().module().joined(backward);
    return window.defined() ? window.amax_history.const_data_ptr() : nullptr;
  };
  return {address(false), address(true)};
}

std::shared_ptr<LayerQuantization> GraphedLayers::find(const LayerQuantization* wanted) const {
  for (const auto& [layer, captured] : layers_) {
    if (layer.get() == wanted) return layer;
  }
  return nullptr;
}

std::shared_ptr<Region> claim_region() {
  const AutocastState* state = current_autocast();
  return state != nullptr && state->region->claim_first() ? state->region : nullptr;
}

}  // namespace telens
