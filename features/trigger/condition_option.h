// The grammar of the conditions of a Trigger:
//   condition = subject relation
//   subject   = statistic ["of" tensor] | "loss" | "recorded" name
//   relation  = (">" | ">=" | "<" | "<=") number
//             | ("jumps" | "drops") ">" number "x"
//             | "spikes" ">" number "x" [("median" | "mean") ["of" count]]
// overflows% of gradient > 0.1, scale_inv jumps > 8x, loss spikes > 2x mean of 20
// scale_inv is short for scale_inv_max.
#pragma once

#include <vector>

#include "features/trigger/condition.h"
#include "hooks/config/error_list.h"
#include "hooks/config/value.h"

namespace telens::features {

// Returns the conditions of a list, or of a string, in order. Adds mistakes to `errors`. Conditions
// may use built-in statistics and the statistics of `plugin`.
std::vector<Condition> parse_conditions(const config::Value& value, config::ErrorList& errors,
                                        const config::StatisticDescriptions* plugin = nullptr);

// Returns the tensors to which a condition on a statistic applies.
std::vector<TensorName> get_tensors(const Condition& condition);

}  // namespace telens::features
