// Detects a quantized weight that a layer reuses without casting the weight again.
#pragma once

#include <cstdint>
#include <optional>

#include "analysis/facts.h"

namespace telens::analysis {

struct KeptCodes {
  std::int64_t since = 0;  // the first iteration in which the GEMM took codes of an earlier one
  // True if the configuration still records the casts; otherwise it is not known whether casts
  // ended.
  bool is_looked_at = false;
};

// Detects a weight whose casts stop while the other operand's continue. Returns nullopt if the
// weight is cast until the end, if it is not an operand, or if its statistics ended by schedule.
std::optional<KeptCodes> kept_codes(const Facts& facts, const Series& error);

}  // namespace telens::analysis
