// The losses of a run: the first that is not finite, and iterations that are given two. Any thread.
#pragma once

#include <cstdint>
#include <mutex>
#include <optional>
#include <string>
#include <utility>

namespace telens::debug {

class LossWatch {
 public:
  // A sentence for the user where the loss stops being finite; nullopt at all other times.
  std::optional<std::string> look_at(double loss, std::int64_t iteration);

  // By record(), while this iteration runs.
  void note_recorded(double loss, std::int64_t iteration);

  struct StepLoss {
    bool is_kept;                                 // false: record() has given this iteration one
    std::optional<std::string> warning_of_other;  // the first time that the two differ
  };
  // By step(), which ends this iteration.
  StepLoss take_of_step(double loss, std::int64_t iteration);

 private:
  std::mutex mutex_;                                       // over what follows
  std::optional<std::pair<double, std::int64_t>> finite_;  // the last one, and its iteration
  bool is_finite_ = true;
  std::optional<std::pair<double, std::int64_t>> recorded_;  // by record(), and its iteration
  bool told_of_two_ = false;
};

}  // namespace telens::debug
