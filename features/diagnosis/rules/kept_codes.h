// Codes of a weight that a layer goes on using without casting the weight again.
#pragma once

#include <cstdint>
#include <optional>

#include "features/diagnosis/facts.h"

namespace telens::diagnosis {

// The first iteration in which the GEMM of this error took codes of an earlier one, since the
// weight was not cast any more and the other operand was. nullopt: its weight is cast up to the
// end, or is no operand.
std::optional<std::int64_t> codes_kept_since(const Facts& facts, const Series& error);

}  // namespace telens::diagnosis
