// fp8_autocast: the region in which layers run in FP8, and when their scales are updated.
//
// Forward amaxes and scales update when the outermost region ends, if gradients are enabled or a
// layer ran in it as part of a training step (the first forward of a reentrant checkpoint disables
// gradients). Gradient amaxes update once, when the backward of the region's first layer ends.
// Evaluation updates nothing, nor does a region that an exception leaves.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "core/base/error.h"
#include "core/distributed/process_group.h"
#include "core/quantization/layer_quantization.h"

namespace telens {

struct AutocastOptions {
  bool enabled = true;
  bool calibrating = false;                   // collect amaxes without running in FP8
  std::shared_ptr<const Recipe> recipe = {};  // default: DelayedScaling()
  // Over which amaxes are reduced (with DelayedScaling::reduce_amax); null: this rank alone.
  ProcessGroupPtr group = {};
  // The end of an outermost region computes new scales of the forward.
  bool updates_scales = true;
};

// The state that the layers of an outermost region share: the scales to update, and the first
// layer. Lives as long as a backward may come.
class Region {
 public:
  // A layer whose histories and scales follow `recipe` has run in the region.
  void add(const std::shared_ptr<LayerQuantization>& layer,
           const std::shared_ptr<const DelayedScaling>& recipe, const ProcessGroupPtr& group);

  // A layer ran as part of a training step, whatever the gradient mode at the region's end is.
  void note_training() { has_trained_ = true; }
  bool has_trained() const { return has_trained_; }

  // Returns true for the first caller, the layer whose backward ends last.
  bool claim_first() { return !std::exchange(first_claimed_, true); }
  // Lets another layer claim: the first one has no backward after all.
  void release_first() { first_claimed_ = false; }

  // The amaxes that update(false) reduces over the group.
  std::int64_t count_reduced(const ProcessGroupPtr& group) const;

  // Reduces the amaxes of one direction over their groups and computes the scales of all layers.
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

  // Leaves the region. What the destructor does, but it may throw (a failed reduction).
  void exit();

  // Leaves the region; amaxes and scales stay as they are. The other ranks may not have come as far
  // or may have gone on, and none would answer a reduction.
  void abandon();

 private:
  bool active_ = true;
  int exceptions_;  // under way when the region began
};

}  // namespace telens
