// Activation recomputation (checkpoint): the second forward must be decided by what decided the
// first one - recipe, scales, routing plan - and must leave no second trace.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include "core/modules/layer_pass.h"

namespace telens {

// The passes of the layers that ran inside one checkpointed function, in order.
class TELENS_EXPORT RecomputationTape {
 public:
  void append(const void* layer, LayerPass pass);
  // The pass of the next layer in order. Throws UsageError if another layer was there the first
  // time.
  LayerPass next(const void* layer, const std::string& name);
  void rewind() { position_ = 0; }

 private:
  struct Entry {
    const void* layer;
    LayerPass pass;
  };
  std::vector<Entry> entries_;
  std::size_t position_ = 0;
};

// While it lives, this thread's layers write their passes to the tape, or take them from it.
class TELENS_EXPORT RecomputationScope {
 public:
  enum class Mode { record, replay };

  RecomputationScope(std::shared_ptr<RecomputationTape> tape, Mode mode);
  ~RecomputationScope();
  RecomputationScope(const RecomputationScope&) = delete;
  RecomputationScope& operator=(const RecomputationScope&) = delete;
};

namespace recomputation {

// Whether this thread is inside any scope, and inside a replaying one.
bool is_active();
bool is_replaying();

// The pass that the innermost replaying scope has for the layer.
LayerPass replayed_pass(const void* layer, const std::string& name);

// Writes the pass to every recording scope, with its scales as they are now.
void record_pass(const void* layer, const LayerPass& pass);

}  // namespace recomputation
}  // namespace telens
