#include "hooks/session/missing_steps.h"

#include <fmt/format.h>

#include <string_view>

namespace telens::debug {
namespace {

constexpr std::string_view kRemedy = "call step() at the end of every forward-backward";

}  // namespace

std::optional<std::string> MissingSteps::note_forward(LayerRouting& routing,
                                                      std::int64_t iteration) {
  const int forwards = routing.count_forward(iterations_.load(std::memory_order_relaxed));
  int most = most_forwards_.load(std::memory_order_relaxed);
  while (most < forwards && !most_forwards_.compare_exchange_weak(most, forwards)) {
  }
  if (forwards != kForwardsBeforeWarning) return std::nullopt;
  is_settled_ = true;
  return fmt::format("{} forwards without a call of debug.step(): the iteration is still {}; {}",
                     forwards, iteration, kRemedy);
}

void MissingSteps::note_step() {
  iterations_.fetch_add(1, std::memory_order_relaxed);
  is_settled_ = true;
}

void MissingSteps::note_jump() {
  iterations_.fetch_add(1, std::memory_order_relaxed);
  most_forwards_ = 0;
}

std::optional<std::string> MissingSteps::at_end(std::int64_t iteration) const {
  const int forwards = most_forwards_;
  if (is_settled_ || forwards < 2) return std::nullopt;
  return fmt::format(
      "debug.step() was never called: layers ran forward {} times, and all of it counts as "
      "iteration {}; {}",
      forwards, iteration, kRemedy);
}

}  // namespace telens::debug
