// A condition over a statistic or another number, as a Trigger has it, and what one series of
// values makes of it. No LibTorch.
#pragma once

#include <cstdint>
#include <deque>
#include <optional>
#include <string>

#include "core/base/names.h"
#include "hooks/statistics/statistic_name.h"

namespace telens {

struct Condition {
  enum class Relation : std::uint8_t { above, at_least, below, at_most, jumps, drops, spikes };
  enum class Average : std::uint8_t { median, mean };

  // The condition as it was written.
  std::string text;

  // The statistic of a tensor; empty: the number that is called `name`.
  std::optional<StatisticName> statistic = {};
  std::optional<TensorName> tensor = {};  // empty: every tensor that has the statistic
  // "loss", or what the program or another feature records under this name.
  std::string name = {};

  Relation relation = Relation::above;
  double bound = 0;  // a factor for jumps, drops and spikes
  // The average with which a spike is compared, and of how many values.
  Average average = Average::median;
  std::size_t window = 0;
};

// The default number of values for spikes: a spike of 25 iterations is still the smaller half, and
// the loss of a training that learns falls little in 50.
inline constexpr std::size_t kSpikeWindow = 50;
// A spike is told from at least so many values before it, or from all of a shorter window: the
// median of five is not moved by two that are out of the ordinary.
inline constexpr std::size_t kFewestBeforeSpike = 5;

// The values of one series in their order. NaN fulfils every condition: it cannot be shown to lie
// within a bound. A factor is taken of positive, finite values alone; against such a value infinity
// is a jump and a spike. What is not finite is never compared with later.
class ConditionHistory {
 public:
  // The condition must live as long.
  explicit ConditionHistory(const Condition& condition) : condition_(condition) {}

  // Describes the value that fulfils the condition ("5.2, 2.6 times the median of 50 values, 2");
  // nullopt where it does not hold.
  std::optional<std::string> add(double value);

 private:
  std::optional<std::string> judge(double value) const;
  std::optional<std::string> judge_step(double value) const;
  std::optional<std::string> judge_spike(double value) const;
  double average() const;

  const Condition& condition_;
  std::deque<double> before_;  // finite, the newest last
};

}  // namespace telens
