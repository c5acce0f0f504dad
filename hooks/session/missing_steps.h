// Notices a training that never calls debug.step(): all of it is recorded as one iteration.
#pragma once

#include <atomic>
#include <cstdint>
#include <optional>
#include <string>

#include "hooks/session/layer_routing.h"

namespace telens::debug {

class MissingSteps {
 public:
  // A layer is asked in a forward that belongs to a training; one that features have
  // is asked in every forward of the first iteration. Returns a sentence at the forward of a layer
  // in one iteration that is too many for micro-batches. Any thread.
  std::optional<std::string> note_forward(LayerRouting& routing, std::int64_t iteration);

  // debug.step()
  void note_step();
  // The iteration is set from outside.
  void note_jump();

  // At the end of the session: a sentence where there was no step, unless layers ran once only.
  std::optional<std::string> at_end(std::int64_t iteration) const;

 private:
  static constexpr int kForwardsBeforeWarning = 1000;

  std::atomic<std::uint64_t> iterations_{0};  // begun since the first one
  std::atomic<int> most_forwards_{0};         // one layer's in the running iteration
  std::atomic<bool> is_settled_{false};       // there was a step, or the user has been told
};

}  // namespace telens::debug
