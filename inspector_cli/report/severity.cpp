#include "inspector_cli/report/severity.h"

#include <algorithm>
#include <array>
#include <cmath>

namespace telens::cli {
namespace {

constexpr std::array<std::string_view, 4> kCountersOfBad{"nonfinite", "nan", "posinf", "neginf"};
// Of both signs: a bias, and binary digits that a scale went up or down by.
constexpr std::array<std::string_view, 4> kBadFarFromZero{"gemm_mean_error", "scale_jump", "min",
                                                          "mean"};

// Of a size: so many can be added up without an infinity.
constexpr double kMost = 1e290;

template <std::size_t N>
bool is_one_of(const std::array<std::string_view, N>& names, std::string_view name) {
  return std::ranges::find(names, name) != names.end();
}

}  // namespace

double lost_share(double underflows_percent, double overflows_percent) {
  const auto share = [](double percent) { return std::clamp(percent / 100, 0.0, 1.0); };
  return share(underflows_percent) + kClippedCounts * share(overflows_percent);
}

double badness(std::string_view statistic, double value) {
  if (!std::isfinite(value)) return 0;
  if (statistic == "gemm_cosine") return 1 - value;
  if (statistic == "scale_headroom") return std::max(0.0, -value);  // bits that the tensor outgrew
  return is_one_of(kBadFarFromZero, statistic) ? std::abs(value) : value;
}

bool is_bad(std::string_view statistic, double value) {
  return !std::isfinite(value) || (value > 0 && is_one_of(kCountersOfBad, statistic));
}

void Severity::Sizes::add(double size) {
  size = std::clamp(size, -kMost, kMost);
  largest = count == 0 ? size : std::max(largest, size);
  ++count;
  sum += size;
  if (size > 0) ++positive;
}

bool worse(const Standing& a, const Standing& b) {
  if (a.first_bad.has_value() != b.first_bad.has_value()) return a.first_bad.has_value();
  if (a.first_bad && *a.first_bad != *b.first_bad) return *a.first_bad < *b.first_bad;
  if (a.first_bad && a.turn != b.turn) return a.turn < b.turn;
  if (a.only_warm_up != b.only_warm_up) return b.only_warm_up;
  if (a.severity != b.severity) return a.severity > b.severity;
  return a.beside > b.beside;
}

}  // namespace telens::cli
