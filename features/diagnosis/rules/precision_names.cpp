#include "features/diagnosis/rules/precision_names.h"

#include <algorithm>
#include <array>

namespace telens::diagnosis {

bool is_high_precision(std::string_view precision) {
  constexpr std::array<std::string_view, 4> kHigh{"BF16", "FP16", "FP32", "FP64"};
  return std::ranges::find(kHigh, precision) != kHigh.end();
}

}  // namespace telens::diagnosis
