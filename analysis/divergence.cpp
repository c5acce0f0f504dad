#include "analysis/divergence.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>
#include <vector>

#include "analysis/baseline.h"
#include "core/base/names.h"

namespace telens::analysis {
namespace {

constexpr std::string_view kCastError = "error of the cast";

void add_sizes(std::vector<Quantity>& all, const Facts& facts) {
  for (const TensorName tensor : kAllTensors) {
    for (Series& series : root_mean_squares(facts, tensor)) {
      all.push_back({Compared::size, "root mean square", std::move(series)});
    }
  }
  if (!all.empty()) return;
  for (const Series* amax : facts.with("cur_amax")) {
    all.push_back({Compared::size, "cur_amax", *amax});
  }
}

Series cast_errors(const Facts& facts, const Series& mse) {
  Series errors{.place = mse.place};
  for (const auto& [iteration, value] : mse.points) {
    const auto size = root_mean_square(facts, mse.place, iteration);
    if (!size || !(*size > 0)) continue;
    errors.points.push_back({iteration, std::sqrt(std::max(0.0, value)) / *size});
  }
  return errors;
}

}  // namespace

std::vector<Quantity> list_quantities(const Facts& facts) {
  std::vector<Quantity> all;
  add_sizes(all, facts);
  for (const Series* mse : facts.with("mse")) {
    Series errors = cast_errors(facts, *mse);
    if (errors.points.empty()) continue;
    all.push_back({Compared::cast_error, kCastError, std::move(errors)});
  }
  for (const Series* error : facts.with("gemm_relative_error")) {
    all.push_back({Compared::product_error, "error of the product", *error});
  }
  return all;
}

std::vector<Quantity> errors_of_no_cast(const std::vector<Quantity>& sizes) {
  std::vector<Quantity> all;
  for (const Quantity& size : sizes) {
    const auto tensor = size.series.place.tensor;
    if (!tensor || !is_gemm_input(*tensor)) continue;
    Quantity none{Compared::cast_error, kCastError, size.series};
    for (Point& point : none.series.points) point.value = 0;
    for (const Gemm gemm : kAllGemms) {
      if (!belongs_to(*tensor, gemm)) continue;
      none.series.place.gemm = gemm;
      all.push_back(none);
    }
    none.series.place.gemm.reset();  // runs may record one cast for all GEMMs
    all.push_back(std::move(none));
  }
  return all;
}

std::vector<std::string_view> compared_statistics() {
  return {"l2_norm",     "numel",    "std",
          "mean",        "cur_amax", "scale_inv_max",
          "underflows%", "mse",      "gemm_relative_error"};
}

namespace {

constexpr double kTimesChance = 3;     // multiple of the distance of the third run
constexpr double kTimesSteps = 4;      // multiple of the typical change of the series
constexpr std::size_t kSustained = 3;  // points; a single one may be chance
constexpr double kTimesTolerance = 3;  // in bits: a single point beyond this is not chance
constexpr std::int64_t kNearby = 2;    // later iterations of the third run that also count
constexpr double kPercent = 100;

struct Pair {
  std::int64_t iteration = 0;
  double a = 0, b = 0;
};

std::vector<Pair> pair_up(const Series& a, const Series& b) {
  std::vector<Pair> pairs;
  for (const auto& [iteration, value] : a.points) {
    if (const auto other = b.at(iteration)) pairs.push_back({iteration, value, *other});
  }
  return pairs;
}

// Consecutive pairs beyond the tolerance: [first, end).
struct Excess {
  std::size_t first = 0, end = 0;
  bool by_far = false;  // true if one of them is too large for chance

  std::size_t size() const { return end - first; }
};

Excess next_excess(Compared kind, const std::vector<Pair>& pairs, std::size_t begin,
                   const Tolerance& tolerance) {
  Excess excess{begin, begin};
  for (std::size_t i = begin; i < pairs.size(); ++i) {
    const double apart = get_distance(kind, pairs[i].a, pairs[i].b);
    const double allowed = tolerance(pairs[i].iteration);
    if (!(apart > allowed)) {
      if (excess.size() > 0) return excess;
      excess.first = excess.end = i + 1;
      continue;
    }
    excess.end = i + 1;
    if (kind == Compared::size) {
      excess.by_far |= to_bits(apart) > kTimesTolerance * to_bits(allowed);
    }
  }
  return excess;
}

}  // namespace

double get_distance(Compared kind, double a, double b) {
  if (a == b || (std::isnan(a) && std::isnan(b))) return 0;
  if (!std::isfinite(a) || !std::isfinite(b)) return std::numeric_limits<double>::infinity();
  const double apart = std::abs(a - b);
  if (kind == Compared::size) return apart / std::max(std::abs(a), std::abs(b));
  return kind == Compared::share ? apart / kPercent : apart;
}

double to_bits(double distance) {
  return distance < 1 ? -std::log2(1 - distance) : std::numeric_limits<double>::infinity();
}

double from_bits(double bits) { return 1 - std::exp2(-bits); }

double chance_by_run(Compared kind, const Series& a, const Series& third, std::int64_t iteration) {
  double largest = 0;
  for (const Point& point : a.points) {
    if (point.iteration > iteration + kNearby) break;
    const auto value = third.at(point.iteration);
    const double apart = value ? get_distance(kind, point.value, *value) : 0;
    if (std::isfinite(apart)) largest = std::max(largest, apart);
  }
  return kTimesChance * largest;
}

double chance_by_steps(Compared kind, const Series& a) {
  std::vector<double> steps;
  for (std::size_t i = 1; i < a.points.size(); ++i) {
    const double step = get_distance(kind, a.points[i].value, a.points[i - 1].value);
    if (std::isfinite(step)) steps.push_back(step);
  }
  return steps.empty() ? 0 : kTimesSteps * median(std::move(steps));
}

bool have_common_iteration(const Series& a, const Series& b) {
  return std::ranges::any_of(a.points,
                             [&](const Point& point) { return b.at(point.iteration).has_value(); });
}

std::optional<Divergence> find_divergence(Compared kind, const Series& a, const Series& b,
                                          const Tolerance& tolerance) {
  const std::vector<Pair> pairs = pair_up(a, b);
  for (std::size_t begin = 0; begin < pairs.size();) {
    const Excess excess = next_excess(kind, pairs, begin, tolerance);
    if (excess.size() == 0) return std::nullopt;
    const bool is_last = kind == Compared::size && excess.end == pairs.size();
    begin = excess.end;
    if (excess.size() < kSustained && !is_last && !excess.by_far) continue;
    const Pair& first = pairs[excess.first];
    Divergence found{.first = first.iteration,
                     .a = first.a,
                     .b = first.b,
                     .difference = get_distance(kind, first.a, first.b),
                     .tolerance = tolerance(first.iteration)};
    if (excess.end < pairs.size()) found.last = pairs[excess.end - 1].iteration;
    return found;
  }
  return std::nullopt;
}

}  // namespace telens::analysis
