// Finds recorded scalars by name.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include "analysis/facts.h"

namespace telens::analysis {

// Returns the scalars with this name on all ranks. The name may have a prefix that ends in a dot,
// as from debug.watch_optimizer(name="...").
std::vector<const Scalars*> scalars_named(const Facts& facts, std::string_view name);

// Returns the scalar with exactly this name on the rank, nullptr if it was not recorded.
const Scalars* scalar_of_rank(const Facts& facts, std::string_view name, int rank);

// Returns the scalar `name` with the prefix and rank of `other`: for "a.lr", the scalar "a.<name>".
// Returns nullptr if it was not recorded.
const Scalars* scalar_beside(const Facts& facts, const Scalars& other, std::string_view name);

// Returns nullopt if the scalar was not recorded in the iteration.
std::optional<double> value_at(const Scalars& scalars, std::int64_t iteration);

}  // namespace telens::analysis
