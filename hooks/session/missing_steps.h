// Detects a training that never calls debug.step(), so that all of it is recorded as one iteration.
#pragma once

#include <atomic>
#include <cstdint>
#include <optional>
#include <string>

#include "hooks/session/layer_routing.h"

namespace telens::debug {

class MissingSteps {
 public:
  // Called when a layer is asked in a forward that belongs to a training; a layer with features is
  // asked in every forward of the first iteration. Returns a sentence at the first forward of a
  // layer that exceeds a plausible number of micro-batches in one iteration. Any thread.
  std::optional<std::string> note_forward(LayerRouting& routing, std::int64_t iteration);

  // Called by debug.step().
  void note_step();
  // Called when the iteration is set from outside.
  void note_jump();

  // At the end of the session: returns a sentence if step() was never called, unless layers only
  // ran once.
  std::optional<std::string> at_end(std::int64_t iteration) const;

 private:
  static constexpr int kForwardsBeforeWarning = 1000;

  std::atomic<std::uint64_t> iterations_{0};  // started since the first one
  std::atomic<int> most_forwards_{0};         // maximum over layers in the running iteration
  std::atomic<bool> is_settled_{false};       // there was a step, or the user was warned
};

}  // namespace telens::debug
