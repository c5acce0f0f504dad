// Parses the names of precisions in a ledger.
#pragma once

#include <string_view>

namespace telens::analysis {

// Returns true for "BF16", "FP32" and similar names; other names describe a cast.
bool is_high_precision(std::string_view precision);

// Returns the scaling in a precision's name: "E4M3 under tensor scaling" -> "tensor"; "" if the
// name does not contain one.
std::string_view scaling_in(std::string_view precision);
// One scale for the whole tensor.
inline constexpr std::string_view kTensorScaling = "tensor";

}  // namespace telens::analysis
