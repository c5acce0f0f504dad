#include "hooks/statistic_definition.h"

#include <utility>

#include "hooks/builtin.h"

namespace telens {

void StatisticDefinition::merge(std::span<double> into, std::span<const double> from) const {
  for (std::size_t i = 0; i < into.size(); ++i) into[i] += from[i];
}

StatisticRegistry::StatisticRegistry()
    : descriptions_(std::make_shared<config::StatisticDescriptions>(is_builtin_statistic)) {}

void StatisticRegistry::add(StatisticRegistration registration) {
  descriptions_->add(registration.description);
  std::string name = registration.description.name;
  registrations_.emplace(std::move(name), std::move(registration));
}

const StatisticRegistration* StatisticRegistry::find(std::string_view name) const {
  const auto found = registrations_.find(name);
  return found == registrations_.end() ? nullptr : &found->second;
}

}  // namespace telens
