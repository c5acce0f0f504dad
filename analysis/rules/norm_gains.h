// Recognizes norms by name and checks the initial values of their gains.
#pragma once

#include <string_view>
#include <vector>

#include "analysis/facts.h"
#include "analysis/rule.h"

namespace telens::analysis {

// Returns true if the last component of the layer's name is the name of a norm: "input_layernorm",
// "norm", "ln_1".
bool is_norm(std::string_view layer);

// Returns a finding for each norm whose gain starts
// - at 0, so that the input of the next layer is 0,
// - at 1, although the norm adds 1 to it, or
// - around 0, as if 1 had been subtracted, although the norm does not add 1.
std::vector<Finding> find_wrong_gains(const Facts& facts);

}  // namespace telens::analysis
