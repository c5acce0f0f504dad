// Estimates the extra duration of steps with features, beyond the charged cost: a watched layer
// runs unfused, and the features' reads evict other data from the caches.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace telens {

class StepDurations {
 public:
  // Adds a step of this duration, of which features were charged `cost`; `ran`: they were on in it.
  void add(bool ran, double seconds, double cost);

  // Returns true if there are steps with and without features to compare.
  bool known() const { return on_.size() >= kFewestOn && off_.size() >= kFewestOff; }
  // Returns the hidden seconds of a step in which features run; 0 if the difference is within the
  // normal variation of steps.
  double hidden_cost() const;

  static constexpr std::size_t kFewestOn = 2;
  static constexpr std::size_t kFewestOff = 4;
  // Steps change over a training, and most at its beginning: steps without features stay comparable
  // for as many steps as came before them, plus this number. After that, if features run in every
  // step, no comparison is possible until some are skipped again.
  static constexpr std::int64_t kFreshFor = 64;

 private:
  void forget_what_is_old();

  // Number of newest steps kept per kind.
  static constexpr std::size_t kKept = 32;
  static void keep(std::vector<double>& kept, std::size_t& next, double seconds);

  std::vector<double> on_;  // excluding the charged cost
  std::vector<double> off_;
  std::size_t next_on_ = 0;
  std::size_t next_off_ = 0;
  std::int64_t steps_ = 0;
  std::int64_t newest_off_ = 0;  // newest of these steps
};

}  // namespace telens
