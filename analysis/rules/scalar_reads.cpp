#include "analysis/rules/scalar_reads.h"

#include <algorithm>
#include <string>

namespace telens::analysis {
namespace {

std::string_view without_prefix(std::string_view name) { return name.substr(name.rfind('.') + 1); }

}  // namespace

std::vector<const Scalars*> scalars_named(const Facts& facts, std::string_view name) {
  std::vector<const Scalars*> found;
  for (const Scalars& scalars : facts.scalars()) {
    if (without_prefix(scalars.name) == name) found.push_back(&scalars);
  }
  return found;
}

const Scalars* scalar_of_rank(const Facts& facts, std::string_view name, int rank) {
  const auto found = std::ranges::find_if(
      facts.scalars(), [&](const Scalars& each) { return each.rank == rank && each.name == name; });
  return found == facts.scalars().end() ? nullptr : &*found;
}

const Scalars* scalar_beside(const Facts& facts, const Scalars& other, std::string_view name) {
  const std::size_t prefix = other.name.size() - without_prefix(other.name).size();
  return scalar_of_rank(facts, other.name.substr(0, prefix).append(name), other.rank);
}

std::optional<double> value_at(const Scalars& scalars, std::int64_t iteration) {
  const auto found = std::ranges::lower_bound(scalars.points, iteration, {}, &Point::iteration);
  if (found == scalars.points.end() || found->iteration != iteration) return std::nullopt;
  return found->value;
}

}  // namespace telens::analysis
