// A statistic's description of itself: one row, for those of TELens
// (hooks/statistics/catalogue) and for those of plugins and programs. Configurations, the
// engine, ranks and the command know a statistic by the address of its row.
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

struct TensorSums;  // core/ops/statistics_layout.h, as the next two
struct CastSums;
struct BlockRanges;
struct ScaleSums;           // hooks/statistics/scale_sums.h
struct ScoreSums;           // core/ops/attention_statistics_layout.h
class StatisticDefinition;  // hooks/statistic_definition.h

namespace config {

// Makes the value from the sums that the alternative names; in the order of StatisticSource.
using Finish =
    std::variant<std::monostate, double (*)(const TensorSums&), double (*)(const CastSums&),
                 std::optional<double> (*)(const ScaleSums&), double (*)(const BlockRanges&),
                 std::shared_ptr<const StatisticDefinition>,
                 std::optional<double> (*)(const ScoreSums&)>;

// Where the sums of a statistic come from.
enum class StatisticSource : std::uint8_t {
  feature,  // none: a feature of its own computes the value and records it
  tensor,   // the high-precision tensor
  cast,     // its cast to a low-precision format
  scale,    // the one scale of that cast
  blocks,   // blocks of the tensor, of a shape that the request names
  plugin,   // the definition of a plugin or a program
  scores,   // an attention's scores
};

enum class StatisticKind : std::uint8_t {
  value,    // NaN of a tensor without elements
  count,    // 0 of one
  counter,  // a count that is recorded with any other statistic of its source, asked for or not
};

// The values of a statistic that are bad, and how bad.
enum class Worse : std::uint8_t {
  high,            // the larger the worse
  below_zero,      // the distance below 0
  away_from_zero,  // the distance from 0, of either sign
  below_one,       // the distance below 1
  any,             // every value above 0 stands for elements that are not finite
};

// The thing that has to exist for the statistic to be read.
enum class Needs : std::uint8_t {
  original,  // the high-precision tensor
  moments,   // the same, read once more for TensorSums::moments
  codes,     // codes and scales are enough
  history,   // the original, and an amax history behind the scale
};

// How `telens plot` treats the statistic where the user names none.
struct PanelRule {
  int place = 0;                 // among the panels, from 1; 0: it has none
  bool only_above_zero = false;  // no panel for a run in which no value is above 0
};

struct StatisticDescription {
  std::string name;                 // a-z, 0-9 and '_', begins with a letter and may end with '%'
  std::string doc = {};             // one line
  std::size_t words = 1;            // FP64 sums that a plugin's definition keeps of a tensor
  std::string owner = "a program";  // the file or module that registered it
  Finish finish = {};
  StatisticKind kind = StatisticKind::value;
  Worse worse = Worse::high;
  Needs needs = Needs::original;
  PanelRule panel = {};

  StatisticSource source() const { return static_cast<StatisticSource>(finish.index()); }
};

// The address of a row. Rows outlive what refers to them: those of TELens the process, others the
// StatisticDescriptions that they were added to.
using StatisticId = const StatisticDescription*;

// The rows of plugins and programs that a configuration may name beside those of TELens.
class StatisticDescriptions {
 public:
  using IsBuiltin = std::function<bool(std::string_view name)>;

  // is_builtin: TELens itself understands the name.
  explicit StatisticDescriptions(IsBuiltin is_builtin) : is_builtin_(std::move(is_builtin)) {}

  // Throws ConfigError for a name that is taken, naming both owners, for a text that is no name,
  // and for a statistic without words. Its source becomes StatisticSource::plugin.
  void add(StatisticDescription description);

  // nullptr: there is none.
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
