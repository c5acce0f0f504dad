// Watches the losses of a run: the first that is not finite, and iterations with two losses.
// Thread-safe.
#pragma once

#include <cstdint>
#include <mutex>
#include <optional>
#include <string>
#include <utility>

namespace telens::debug {

class LossWatch {
 public:
  // Returns a sentence for the user when the loss stops being finite; nullopt at all other times.
  std::optional<std::string> look_at(double loss, std::int64_t iteration);

  // Notes a loss from record(), while this iteration runs.
  void note_recorded(double loss, std::int64_t iteration);

  struct StepLoss {
    // false if record() has already set this iteration's loss
    bool is_kept;
    std::optional<std::string> warning_of_other;  // set the first time that the two differ
  };
  // Receives a loss from step(), which ends this iteration.
  StepLoss take_of_step(double loss, std::int64_t iteration);

 private:
  std::mutex mutex_;                                       // guards the members below
  std::optional<std::pair<double, std::int64_t>> finite_;  // last finite loss, and its iteration
  bool is_finite_ = true;
  std::optional<std::pair<double, std::int64_t>> recorded_;  // from record(), and its iteration
  bool told_of_two_ = false;
};

}  // namespace telens::debug
