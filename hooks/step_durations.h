// Estimates what steps with features take beyond the others and beyond what they were charged: a
// layer that is watched runs unfused, and what features read pushes other things out of the caches.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace telens {

class StepDurations {
 public:
  // A step that took so long, of which features were charged `cost`; `ran`: they were on in it.
  void add(bool ran, double seconds, double cost);

  // True if there are steps of both kinds to compare.
  bool known() const { return on_.size() >= kFewestOn && off_.size() >= kFewestOff; }
  // Seconds of a step in which features run; 0 where it is no more than steps vary anyway.
  double hidden_cost() const;

  static constexpr std::size_t kFewestOn = 2;
  static constexpr std::size_t kFewestOff = 4;
  // Steps change over a training, and most in its beginning: those without features tell for as
  // many steps as came before them, and these. After that, where features run in every step, there
  // is nothing to compare with until some are left out again.
  static constexpr std::int64_t kFreshFor = 64;

 private:
  void forget_what_is_old();

  // The newest of each kind.
  static constexpr std::size_t kKept = 32;
  static void keep(std::vector<double>& kept, std::size_t& next, double seconds);

  std::vector<double> on_;  // without what was charged
  std::vector<double> off_;
  std::size_t next_on_ = 0;
  std::size_t next_off_ = 0;
  std::int64_t steps_ = 0;
  std::int64_t newest_off_ = 0;  // the newest of these steps
};

}  // namespace telens
