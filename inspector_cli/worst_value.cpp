#include "inspector_cli/worst_value.h"

#include <algorithm>
#include <array>
#include <cmath>

namespace telens::cli {
namespace {

constexpr std::array<std::string_view, 2> kBadWhenSmall{"gemm_cosine", "scale_headroom"};
// Of both signs: a bias, and binary digits that a scale went up or down by.
constexpr std::array<std::string_view, 4> kBadFarFromZero{"gemm_mean_error", "scale_jump", "min",
                                                          "mean"};

}  // namespace

double badness(std::string_view statistic, double lowest, double highest) {
  if (std::ranges::find(kBadWhenSmall, statistic) != kBadWhenSmall.end()) return -lowest;
  if (std::ranges::find(kBadFarFromZero, statistic) != kBadFarFromZero.end()) {
    return std::max(std::abs(lowest), std::abs(highest));
  }
  return highest;
}

}  // namespace telens::cli
