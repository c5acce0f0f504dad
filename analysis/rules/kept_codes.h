// Codes of a weight that a layer goes on using without casting the weight again.
#pragma once

#include <cstdint>
#include <optional>

#include "analysis/facts.h"

namespace telens::analysis {

struct KeptCodes {
  std::int64_t since = 0;  // the first iteration in which the GEMM took codes of an earlier one
  // The run's configuration goes on looking at the casts; else it is not known.
  bool is_looked_at = false;
};

// The casts of the weight end, by what is recorded of them, and those of the other operand go on.
// nullopt: the weight is cast up to the end, or is no operand, or what looked at its casts ended by
// its schedule.
std::optional<KeptCodes> kept_codes(const Facts& facts, const Series& error);

}  // namespace telens::analysis
