#include "analysis/rules/precision_names.h"

#include <algorithm>
#include <array>

namespace telens::analysis {

bool is_high_precision(std::string_view precision) {
  constexpr std::array<std::string_view, 4> kHigh{"BF16", "FP16", "FP32", "FP64"};
  return std::ranges::find(kHigh, precision) != kHigh.end();
}

std::string_view scaling_in(std::string_view precision) {
  constexpr std::string_view kUnder = " under ";
  constexpr std::string_view kScaling = " scaling";
  const auto under = precision.find(kUnder);
  if (under == std::string_view::npos || !precision.ends_with(kScaling)) return "";
  precision.remove_prefix(under + kUnder.size());
  precision.remove_suffix(kScaling.size());
  return precision;
}

}  // namespace telens::analysis
