#include "analysis/seed_scatter.h"

#include <algorithm>
#include <cmath>
#include <deque>
#include <optional>

#include "analysis/baseline.h"
#include "analysis/common_factor.h"

namespace telens::analysis {
namespace {

constexpr std::size_t kWindow = 8;    // iterations
constexpr double kSameData = 0x1p-7;  // bits: a batch of 4096 normal values varies by 0.016
constexpr std::size_t kFirstBatches = 3;
// Rounding to BF16 increases a norm of n weights by 2^-19 bits, with a deviation below 2^-8 /
// sqrt(n). The norms of two seeds differ by 1.44 / sqrt(n).
constexpr double kGrowthByBf16 = 0x1p-18;
constexpr double kScatterByBf16 = 0x1p-6;  // times 1 / sqrt(n)

constexpr double kTimesScatter = 6;
constexpr double kOfNormal = 1.4826;
// Bits of four series; the median of more is surer. Gradients of seeds differ more than weights.
constexpr double kFloor = 0.25;
constexpr double kFloorOfGradients = 1.5;
constexpr double kCap = 4;

std::optional<double> ratio_in_bits(double a, double b) {
  const bool known = a > 0 && b > 0 && std::isfinite(a) && std::isfinite(b);
  return known ? std::optional(std::log2(b / a)) : std::nullopt;
}

// The largest |log2(b / a)| in the first common iterations; nullopt if there are none or the first
// one is later than `first`.
std::optional<double> first_distance(const Series& a, const Series& b, std::int64_t first,
                                     std::size_t iterations) {
  std::optional<double> largest;
  std::size_t seen = 0;
  for (const auto& [iteration, value] : a.points) {
    const auto other = b.at(iteration);
    if (!other) continue;
    if (seen == 0 && iteration != first) return std::nullopt;
    const auto ratio = ratio_in_bits(value, *other);
    if (ratio) largest = std::max(largest.value_or(0), std::abs(*ratio));
    if (++seen == iterations) break;
  }
  return largest;
}

double rounding_of_weights(const Series& weight, const Facts& facts, std::int64_t iteration) {
  const Series* numel = facts.find(weight.place, "numel");
  const auto count = numel != nullptr ? numel->at(iteration) : std::nullopt;
  return kGrowthByBf16 + (count && *count > 0 ? kScatterByBf16 / std::sqrt(*count) : 0);
}

// First iteration of records and scalars; scalars may begin earlier.
std::int64_t first_iteration(const Facts& facts) {
  std::int64_t first = facts.first_iteration();
  for (const Scalars& each : facts.scalars()) {
    if (!each.points.empty()) first = std::min(first, each.points.front().iteration);
  }
  return first;
}

bool have_other_weights(const std::vector<SizePair>& pairs, const Facts& a, std::int64_t first) {
  std::size_t weights = 0;
  std::size_t others = 0;
  for (const SizePair& pair : pairs) {
    if (pair.a->place.tensor != TensorName::weight) continue;
    ++weights;
    const double distance = first_distance(*pair.a, *pair.b, first, 1).value_or(0);
    if (distance > rounding_of_weights(*pair.a, a, first)) ++others;
  }
  return 2 * others > weights;
}

// `sizes`: ascending, with `own` among them.
double median_of_others(const std::vector<double>& sizes, double own) {
  const auto at = static_cast<std::size_t>(std::ranges::lower_bound(sizes, own) - sizes.begin());
  const auto other = [&](std::size_t i) { return sizes[i < at ? i : i + 1]; };
  const std::size_t others = sizes.size() - 1;
  return (other((others - 1) / 2) + other(others / 2)) / 2;
}

}  // namespace

bool have_other_seeds(const std::vector<SizePair>& pairs, const Facts& a, const Facts& b) {
  const std::int64_t begin = first_iteration(a);
  if (begin != first_iteration(b)) return false;
  if (have_other_weights(pairs, a, begin)) return true;
  const SizePair* first = nullptr;
  for (const SizePair& pair : pairs) {
    if (pair.a->place.tensor != TensorName::activation) continue;
    if (first == nullptr || pair.a->place.layer < first->a->place.layer) first = &pair;
  }
  if (first == nullptr) return false;
  // After a norm the root mean square is 1 for any data.
  const Series* amax_a = a.find(first->a->place, "cur_amax");
  const Series* amax_b = b.find(first->b->place, "cur_amax");
  double distance = first_distance(*first->a, *first->b, begin, kFirstBatches).value_or(0);
  if (amax_a != nullptr && amax_b != nullptr) {
    distance =
        std::max(distance, first_distance(*amax_a, *amax_b, begin, kFirstBatches).value_or(0));
  }
  return distance > kSameData;
}

SeedScatter::SeedScatter(const std::vector<SizePair>& pairs, const Facts& a) : facts_(a) {
  for (const auto& [of_a, of_b] : pairs) {
    std::deque<double> last;
    for (const auto& [iteration, value] : of_a->points) {
      const auto other = of_b->at(iteration);
      const auto ratio = other ? ratio_in_bits(value, *other) : std::nullopt;
      if (!ratio) continue;
      const double usual = last.empty() ? *ratio : median({last.begin(), last.end()});
      usual_[of_a][iteration] = usual;
      for (const bool of_kind : {false, true}) {
        sizes_[make_key(of_a->place, of_kind, iteration)].push_back(std::abs(usual));
      }
      last.push_back(*ratio);
      if (last.size() > kWindow) last.pop_front();
    }
  }
  for (auto& [key, sizes] : sizes_) std::ranges::sort(sizes);
}

SeedScatter::Key SeedScatter::make_key(const Place& place, bool of_kind,
                                       std::int64_t iteration) const {
  return {static_cast<int>(*place.tensor), place.rank, of_kind ? facts_.get_kind(place.layer) : "",
          iteration};
}

double SeedScatter::tolerance(const Series& series, std::int64_t iteration) const {
  const auto usual = usual_.find(&series);
  if (usual == usual_.end()) return 0;
  const auto own = usual->second.find(iteration);
  if (own == usual->second.end()) return 0;
  double scatter = 0;
  std::size_t most = 0;
  for (const bool of_kind : {false, true}) {
    const auto& sizes = sizes_.at(make_key(series.place, of_kind, iteration));
    most = std::max(most, sizes.size());
    if (sizes.size() < kLeastPairs) continue;
    scatter = std::max(scatter, kOfNormal * median_of_others(sizes, std::abs(own->second)));
  }
  const bool backward = std::get<0>(get_order_in_step(series.place)) == 1;
  const double floor = (backward ? kFloorOfGradients : kFloor) * static_cast<double>(kLeastPairs) /
                       static_cast<double>(std::max(most, kLeastPairs));
  return std::clamp(kTimesScatter * scatter, floor, kCap);
}

}  // namespace telens::analysis
