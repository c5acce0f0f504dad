// The statistics that plugins and programs define, as configurations know them.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace telens::config {

// Names are made of a-z, 0-9 and '_', begin with a letter and may end with '%'.
struct StatisticDescription {
  std::string name;
  std::string doc = {};             // one line
  std::size_t words = 1;            // FP64 sums that it keeps of a tensor
  std::string owner = "a program";  // who registered it: a file, a module
};

// All that a configuration may name beside the built-in ones.
class StatisticDescriptions {
 public:
  using IsBuiltin = std::function<bool(std::string_view name)>;

  // is_builtin: whether TELens itself understands the name.
  explicit StatisticDescriptions(IsBuiltin is_builtin) : is_builtin_(std::move(is_builtin)) {}

  // Has every name: for what was validated before, by the list of then.
  static const StatisticDescriptions& any();

  // A name that is taken throws ConfigError naming both owners; so does one that is none, and one
  // without words.
  void add(StatisticDescription description);

  bool has(std::string_view name) const;
  const std::vector<StatisticDescription>& all() const { return all_; }
  std::vector<std::string> names() const;

 private:
  StatisticDescriptions() = default;

  const StatisticDescription* find(std::string_view name) const;

  IsBuiltin is_builtin_;  // empty: has every name
  std::vector<StatisticDescription> all_;
};

using StatisticDescriptionsPtr = std::shared_ptr<const StatisticDescriptions>;

}  // namespace telens::config
