// Activation recomputation (checkpoint): the second forward runs in the context of the first one
// (recipe, scales, routing plan) and records nothing.
#pragma once

#include <ATen/core/Tensor.h>

#include <atomic>
#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "core/modules/shared/forward_context.h"

namespace telens {

// The contexts of the layers in a checkpointed function, in order. Construct it in the caller's
// gradient mode.
class TELENS_EXPORT RecomputationTape {
 public:
  RecomputationTape();

  void append(const void* layer, ForwardContext context);
  // Returns the context of the next layer. Throws UsageError if the first forward ran another
  // layer.
  ForwardContext next(const void* layer, const std::string& name);
  void rewind() { position_ = 0; }
  // True if gradients were enabled at the call: the function belongs to a training step.
  bool trains() const { return trains_; }

  // False if no input of a reentrant checkpoint requires a gradient: torch then never recomputes
  // it, and none of its layers has a backward. Default: true.
  void set_has_backward(bool has_backward) { has_backward_ = has_backward; }
  bool has_backward() const { return has_backward_; }

 private:
  struct Entry {
    const void* layer;
    ForwardContext context;
  };
  std::vector<Entry> entries_;
  std::size_t position_ = 0;
  bool trains_;
  bool has_backward_ = true;
};

// During its lifetime, this thread's layers record their contexts on the tape or replay them.
class TELENS_EXPORT RecomputationScope {
 public:
  enum class Mode { record, replay };

  RecomputationScope(std::shared_ptr<RecomputationTape> tape, Mode mode);
  ~RecomputationScope();
  RecomputationScope(const RecomputationScope&) = delete;
  RecomputationScope& operator=(const RecomputationScope&) = delete;
};

namespace recomputation {

// The number of scopes on all threads. If it is 0, no thread-local state is read.
extern std::atomic<int> all_scopes;
bool is_active_here();
bool is_replaying_here();
bool is_training_here();
bool hides_gradients_here();
bool hides_backward_here();

// is_active(): inside any scope of this thread. is_replaying(): inside a replaying scope.
inline bool is_active() {
  return all_scopes.load(std::memory_order_relaxed) != 0 && is_active_here();
}
inline bool is_replaying() {
  return all_scopes.load(std::memory_order_relaxed) != 0 && is_replaying_here();
}

// True inside a checkpoint that was called with gradients enabled.
inline bool is_training() {
  return all_scopes.load(std::memory_order_relaxed) != 0 && is_training_here();
}

// True in the first forward of a reentrant checkpoint of a training step: gradients are disabled
// although a backward follows.
inline bool hides_gradients() {
  return all_scopes.load(std::memory_order_relaxed) != 0 && hides_gradients_here();
}

// True in such a first forward if the checkpoint has a backward (has_backward()).
inline bool hides_backward() {
  return all_scopes.load(std::memory_order_relaxed) != 0 && hides_backward_here();
}

// True if this forward belongs to a training step: disabled gradients do not imply an evaluation.
bool trains();

// Returns the layer's context from the innermost replaying scope. `layer`: its identity.
ForwardContext replay_context(const void* layer, const std::string& name);

// Decides whether this layer's backward ends the backward of its region. A reentrant checkpoint
// hides in its first forward which layers have a backward, so the first layer claims the end there.
// If the recomputation shows that it has none, the next layer that has one takes the claim.
// `asks_gradient`: autograd records this forward.
void claim_region_end(ForwardContext& context, bool asks_gradient);

// Records the context, with its present scales, in every recording scope.
void record_context(const void* layer, const ForwardContext& context);

}  // namespace recomputation

// ---- a function of tensors whose backward recomputes it, so that no intermediates are saved

using TensorFunction = std::function<at::Tensor(const std::vector<at::Tensor>&)>;

// Returns function(inputs). Inputs may be undefined. `function` must not capture tensors that
// require gradients. draws: it uses random numbers from the default generator of the first input's
// device; the recomputation draws the same numbers.
at::Tensor checkpointed_call(const TensorFunction& function, const std::vector<at::Tensor>& inputs,
                             bool draws);

}  // namespace telens
