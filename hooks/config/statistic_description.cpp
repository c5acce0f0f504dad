#include "hooks/config/statistic_description.h"

#include <algorithm>
#include <utility>

#include "core/base/error.h"

namespace telens::config {
namespace {

// The run file stores at most this many bytes of a name (record/run_schema.h).
constexpr std::size_t kLongestName = 128;

bool is_name(std::string_view name) {
  if (name.ends_with('%')) name.remove_suffix(1);
  const auto is_letter = [](char c) { return c >= 'a' && c <= 'z'; };
  return !name.empty() && is_letter(name.front()) && std::ranges::all_of(name, [&](char c) {
    return is_letter(c) || (c >= '0' && c <= '9') || c == '_';
  });
}

}  // namespace

void StatisticDescriptions::add(StatisticDescription description) {
  const auto refuse = [&](const std::string& reason) {
    raise<ConfigError>("the statistic '{}' of {} cannot be registered: {}", description.name,
                       description.owner, reason);
  };
  if (!is_name(description.name) || description.name.size() > kLongestName) {
    refuse(
        fmt::format("a name is made of a-z, 0-9 and '_', begins with a letter, may end with "
                    "'%' and has at most {} characters",
                    kLongestName));
  }
  if (description.words == 0) refuse("its size is 0; it needs at least one FP64 word");
  if (is_builtin_(description.name)) {
    refuse("telens has a statistic of that name already; choose another");
  }
  if (const StatisticId other = find(description.name)) {
    refuse(fmt::format("{} has registered that name already; rename one of the two", other->owner));
  }
  if (description.source() != StatisticSource::plugin) {
    description.finish = std::shared_ptr<const StatisticFunctions>();
  }
  all_.push_back(std::move(description));
}

std::vector<std::string> StatisticDescriptions::names() const {
  std::vector<std::string> names;
  for (const StatisticDescription& each : all_) names.push_back(each.name);
  return names;
}

StatisticId StatisticDescriptions::find(std::string_view name) const {
  const auto found = std::ranges::find(all_, name, &StatisticDescription::name);
  return found == all_.end() ? nullptr : &*found;
}

}  // namespace telens::config
