// Layers in a captured forward, and the region of autocast that a replay of it is in: a replay
// calls no layer, and amaxes are reduced and scales updated outside of the graph all the same.
#pragma once

#include <array>
#include <memory>
#include <utility>
#include <vector>

#include "core/quantization/autocast.h"

namespace telens {

// Those of a module that have amax histories.
class TELENS_EXPORT GraphedLayers {
 public:
  // After the capture: the layers that have run under a recipe with histories. `owner` keeps them.
  // `earlier`: of another capture of the module; may be null.
  GraphedLayers(const std::vector<LayerQuantization*>& layers,
                const std::shared_ptr<const void>& owner, const GraphedLayers* earlier);

  std::size_t size() const { return layers_.size(); }

  // Makes them known to this thread's region, as if they had run in it. Throws UsageError, and
  // makes none known, where a history is not the one that was captured.
  void join_region() const;

 private:
  // Where the histories of forward and backward are; nullptr: there is none.
  using Addresses = std::array<const void*, 2>;

  static Addresses find_addresses(LayerQuantization& layer);
  std::shared_ptr<LayerQuantization> find(const LayerQuantization* wanted) const;

  std::vector<std::pair<std::shared_ptr<LayerQuantization>, Addresses>> layers_;
};

// This thread's region, for the caller that is its first, which updates the gradients' scales when
// its backward ends; null for later ones and outside of any region.
TELENS_EXPORT std::shared_ptr<Region> claim_region();

}  // namespace telens
