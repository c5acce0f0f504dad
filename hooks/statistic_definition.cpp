#include "hooks/statistic_definition.h"

#include <utility>

namespace telens {

void StatisticFunctions::merge(std::span<double> into, std::span<const double> from) const {
  for (std::size_t i = 0; i < into.size(); ++i) into[i] += from[i];
}

StatisticRegistry::StatisticRegistry(std::function<bool(std::string_view)> is_builtin)
    : descriptions_(std::make_shared<config::StatisticDescriptions>(std::move(is_builtin))) {}

void StatisticRegistry::add(StatisticRegistration registration) {
  registration.description.finish = std::move(registration.definition);
  descriptions_->add(std::move(registration.description));
}

}  // namespace telens
