// Recognizes norms and gains that begin wrong.
#pragma once

#include <string_view>
#include <vector>

#include "analysis/diagnosis_finding.h"
#include "analysis/facts.h"

namespace telens::analysis {

// True if the last part of the layer's name says that it is a norm: "input_layernorm", "norm",
// "ln_1".
bool is_norm(std::string_view layer);

// Returns norms whose gain begins as zero and silences the next layer, as one in a norm that adds
// one to it, or around zero as if one had been subtracted from it.
std::vector<Finding> wrong_gains(const Facts& facts);

}  // namespace telens::analysis
