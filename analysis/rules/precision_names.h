// Names of precisions, as the ledger has them.
#pragma once

#include <string_view>

namespace telens::analysis {

// "BF16", "FP32" and the like; another name is that of a cast.
bool is_high_precision(std::string_view precision);

// "E4M3 under tensor scaling" -> "tensor"; "" where there is none.
std::string_view scaling_in(std::string_view precision);
// The scaling under which a tensor has one scale.
inline constexpr std::string_view kTensorScaling = "tensor";

}  // namespace telens::analysis
