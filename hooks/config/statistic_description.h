// A statistic's description, a row: for the statistics of TELens (hooks/statistics/catalogue) and
// for those that plugins and programs register. Configurations, the engine, ranks and the command
// identify a statistic by the address of its row.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

namespace telens {

struct TensorSums;  // core/ops/statistics_layout.h, also for the next two
struct CastSums;
struct BlockRanges;
struct ScaleSums;          // hooks/statistics/scales.h
struct ScoreSums;          // core/ops/statistics_layout.h
class StatisticFunctions;  // hooks/statistic_definition.h

namespace config {

// Computes the value from the sums of its alternative; in the order of StatisticSource.
using Finish =
    std::variant<std::monostate, double (*)(const TensorSums&), double (*)(const CastSums&),
                 std::optional<double> (*)(const ScaleSums&), double (*)(const BlockRanges&),
                 std::shared_ptr<const StatisticFunctions>,
                 std::optional<double> (*)(const ScoreSums&)>;

// The origin of a statistic's sums.
enum class StatisticSource : std::uint8_t {
  feature,  // no sums: a feature computes and records the value
  tensor,   // the high-precision tensor
  cast,     // its cast to a low-precision format
  scale,    // the per-tensor scale of that cast
  blocks,   // blocks of the tensor, with the shape in the request
  plugin,   // defined by a plugin or a program
  scores,   // an attention's scores
};

enum class StatisticKind : std::uint8_t {
  value,    // NaN for a tensor without elements
  count,    // 0 of one
  counter,  // a count that is recorded whenever another statistic of its source is recorded
};

// The values of a statistic that are bad, and their order.
enum class Worse : std::uint8_t {
  high,            // the larger the worse
  below_zero,      // the distance below 0
  away_from_zero,  // the distance from 0, of either sign
  below_one,       // the distance below 1
  any,             // a value above 0 counts elements that are not finite
};

// The requirement for reading the statistic.
enum class Needs : std::uint8_t {
  original,  // the high-precision tensor
  moments,   // the original, with a second read for TensorSums::moments
  codes,     // codes and scales are enough
  history,   // the original, and a scale with an amax history
};

// How `telens plot` treats the statistic by default.
struct PanelRule {
  int place = 0;                 // position among the panels, from 1; 0 for no panel
  bool only_above_zero = false;  // no panel for a run in which no value is above 0
};

struct StatisticDescription {
  std::string name;                 // a-z, 0-9 and '_', begins with a letter and may end with '%'
  std::string doc = {};             // one line
  std::size_t words = 1;            // FP64 sums that a plugin's definition keeps per tensor
  std::string owner = "a program";  // the file or module that registered it
  Finish finish = {};
  StatisticKind kind = StatisticKind::value;
  Worse worse = Worse::high;
  Needs needs = Needs::original;
  PanelRule panel = {};

  StatisticSource source() const { return static_cast<StatisticSource>(finish.index()); }
};

// The address of a row. Rows outlive references to them: the rows of TELens live as long as the
// process, others as long as the StatisticDescriptions that they were added to.
using StatisticId = const StatisticDescription*;

// The rows of plugins and programs that a configuration may name in addition to the built-in ones.
class StatisticDescriptions {
 public:
  using IsBuiltin = std::function<bool(std::string_view name)>;

  // is_builtin: returns true if TELens itself defines the name.
  explicit StatisticDescriptions(IsBuiltin is_builtin) : is_builtin_(std::move(is_builtin)) {}

  // Throws ConfigError if the name is already used (naming both owners), if the text is not a valid
  // name, or if `words` is 0. Sets the source to StatisticSource::plugin.
  void add(StatisticDescription description);

  // Returns nullptr if there is none.
  StatisticId find(std::string_view name) const;
  const std::deque<StatisticDescription>& all() const { return all_; }
  std::vector<std::string> names() const;

 private:
  IsBuiltin is_builtin_;
  std::deque<StatisticDescription> all_;  // addresses stay
};

using StatisticDescriptionsPtr = std::shared_ptr<const StatisticDescriptions>;

}  // namespace config
}  // namespace telens
