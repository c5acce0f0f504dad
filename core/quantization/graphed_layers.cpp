#include "core/quantization/graphed_layers.h"

#include "core/base/error.h"

namespace telens {

GraphedLayers::GraphedLayers(const std::vector<LayerQuantization*>& layers,
                             const std::shared_ptr<const void>& owner,
                             const GraphedLayers* earlier) {
  for (LayerQuantization* each : layers) {
    if (each->recipe() == nullptr || each->followed(each->recipe()) == nullptr) continue;
    std::shared_ptr<LayerQuantization> layer = earlier ? earlier->find(each) : nullptr;
    // A region knows a layer by its owner, so each has one of its own, the same in all graphs.
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
