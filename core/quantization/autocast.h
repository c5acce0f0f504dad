// fp8_autocast: the region in which layers run in FP8, and when their scales are updated.
//
// Forward scales are updated when the outermost region ends, if gradients are enabled or if a layer
// ran as part of a training step (the first forward of a reentrant checkpoint disables gradients).
// Gradient scales are updated once, when the backward of the region's first layer ends. Evaluation
// updates nothing; neither does a region that ends with an exception.
#pragma once

#include <ATen/core/Tensor.h>

#include <array>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "core/base/error.h"
#include "core/distributed/process_group.h"
#include "core/quantization/layer_quantization.h"

namespace telens {

struct AutocastOptions {
  bool enabled = true;
  bool calibrating = false;                   // collect amaxes without running in FP8
  std::shared_ptr<const Recipe> recipe = {};  // default: DelayedScaling()
  // Amaxes are reduced over this group if DelayedScaling::reduce_amax is set; nullptr if only this
  // rank counts.
  ProcessGroupPtr group = {};
  // The end of an outermost region updates the forward's scales.
  bool updates_scales = true;
};

// The state of an outermost region that its layers share: the scales to update and the first layer.
// Lives until its last backward.
class Region {
 public:
  // Registers a layer whose histories and scales follow `recipe`.
  void add(const std::shared_ptr<LayerQuantization>& layer,
           const std::shared_ptr<const DelayedScaling>& recipe, const ProcessGroupPtr& group);

  // Records that a layer ran as part of a training step, whatever the gradient mode at the end of
  // the region.
  void note_training() { has_trained_ = true; }
  bool has_trained() const { return has_trained_; }

  // Returns true for the first caller, the layer whose backward ends last.
  bool claim_first() { return !std::exchange(first_claimed_, true); }
  // Allows another layer to claim, because the first one does not have a backward.
  void release_first() { first_claimed_ = false; }

  // Returns the number of amaxes that update(false) reduces over the group.
  std::int64_t count_reduced(const ProcessGroupPtr& group) const;

  // Reduces the amaxes of a direction over their groups and updates the scales of every layer.
  void update(bool backward);

 private:
  struct Member {
    std::weak_ptr<LayerQuantization> layer;
    std::shared_ptr<const DelayedScaling> recipe;
    ProcessGroupPtr group;
  };
  std::vector<Member> members_;
  bool first_claimed_ = false;
  bool has_trained_ = false;
};

// The innermost region of this thread.
struct AutocastState {
  AutocastOptions options;
  std::shared_ptr<Region> region;
};

// nullptr outside of any region.
TELENS_EXPORT const AutocastState* current_autocast();

// Enters a region for the lifetime of the object; regions nest per thread. An exception that leaves
// the region abandons it.
class TELENS_EXPORT Autocast {
 public:
  explicit Autocast(AutocastOptions options = {});
  ~Autocast();
  Autocast(const Autocast&) = delete;
  Autocast& operator=(const Autocast&) = delete;

  // Leaves the region, like the destructor, but may throw (a failed reduction).
  void exit();

  // Leaves the region without updating amaxes and scales: other ranks may be at another point and
  // would not join a reduction.
  void abandon();

 private:
  bool active_ = true;
  int exceptions_;  // uncaught exceptions when the region began
};

// Layers with amax histories in a captured forward, and the autocast region of its replays. A
// replay calls no layer, but amaxes are reduced and scales are updated outside of the graph.
class TELENS_EXPORT GraphedLayers {
 public:
  // Call after the capture. Finds the layers that ran under a recipe with histories. `owner` keeps
  // them alive. `earlier`: the layers of an earlier capture of the module; may be nullptr.
  GraphedLayers(const std::vector<LayerQuantization*>& layers,
                const std::shared_ptr<const void>& owner, const GraphedLayers* earlier);

  std::size_t size() const { return layers_.size(); }

  // Registers the layers with this thread's region, as if they had run in it. Throws UsageError and
  // registers none if a history is not the captured one.
  void join_region() const;

 private:
  // The addresses of the forward and backward histories; nullptr if there is none.
  using Addresses = std::array<const void*, 2>;

  static Addresses find_addresses(LayerQuantization& layer);
  std::shared_ptr<LayerQuantization> find(const LayerQuantization* wanted) const;

  std::vector<std::pair<std::shared_ptr<LayerQuantization>, Addresses>> layers_;
};

// Returns this thread's region to the first caller, which must update the gradient scales when its
// backward ends. Returns nullptr to later callers and outside of a region.
TELENS_EXPORT std::shared_ptr<Region> claim_region();

}  // namespace telens
