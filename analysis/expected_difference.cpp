#include "analysis/expected_difference.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <deque>
#include <map>
#include <numeric>
#include <optional>
#include <string_view>

#include "analysis/baseline.h"
#include "analysis/common_factor.h"

namespace telens::analysis {
namespace {

struct FormatError {
  std::string_view name;
  double unit;  // 2^-(mantissa bits + 1)
};
constexpr std::array kFormats{FormatError{"E2M1", 0x1p-2}, FormatError{"E5M2", 0x1p-3},
                              FormatError{"E3M2", 0x1p-3}, FormatError{"E2M3", 0x1p-4},
                              FormatError{"E4M3", 0x1p-4}, FormatError{"BF16", 0x1p-8},
                              FormatError{"FP16", 0x1p-11}};
constexpr double kUnitOfE5m2 = 0x1p-3;
constexpr double kUnitOfBf16 = 0x1p-8;
constexpr double kUnitOfFp32 = 0x1p-24;

// One run, by layers.
struct Sizes {
  std::map<std::int32_t, double> units;
  std::map<std::int32_t, double> ks;
  double unit_elsewhere = kUnitOfBf16;  // for layers that `units` lacks
};

std::map<std::int32_t, double> units_of_gemms(const Facts& facts) {
  std::map<std::int32_t, double> units;
  for (const GemmState& state : facts.gemm_states()) {
    double& coarsest = units.try_emplace(state.place.layer, kUnitOfBf16).first->second;
    for (const auto& [entry, detail] : state.entries) {
      if (!entry.ends_with(" ran")) continue;
      for (const auto& [name, unit] : kFormats) {
        if (detail.starts_with(name)) coarsest = std::max(coarsest, unit);
      }
    }
  }
  return units;
}

// Inner dimension K of [M, K] x [K, N] -> [M, N], from the sizes MK, KN and MN; 0 if unknown.
double k_beside(const Facts& facts, const Series& weight) {
  if (weight.points.empty()) return 0;
  const auto& [iteration, elements] = weight.points.back();
  const auto size = [&](TensorName tensor) {
    Place place = weight.place;
    place.tensor = tensor;
    const Series* series = facts.find(place, "numel");
    return series != nullptr ? series->at(iteration).value_or(0) : 0;
  };
  const double output = size(TensorName::output);
  return output > 0 ? std::sqrt(size(TensorName::activation) * elements / output) : 0;
}

Sizes get_sizes(const Facts& facts) {
  Sizes sizes;
  sizes.units = units_of_gemms(facts);
  const bool casts = facts.has("scale_inv_max") || facts.has("underflows%") || facts.has("mse");
  for (const auto& [layer, unit] : sizes.units) {
    sizes.unit_elsewhere = std::max(sizes.unit_elsewhere, unit);
  }
  // If no GEMM recorded its precision, a cast may use any FP8 format.
  if (sizes.units.empty() && casts) sizes.unit_elsewhere = kUnitOfE5m2;
  for (const Series* each : facts.with("numel")) {
    if (each->place.tensor != TensorName::weight) continue;
    double& k = sizes.ks[each->place.layer];
    k = std::max(k, k_beside(facts, *each));
  }
  return sizes;
}

double at_or(const std::map<std::int32_t, double>& values, std::int32_t layer, double otherwise) {
  const auto found = values.find(layer);
  return found == values.end() ? otherwise : found->second;
}

double get_largest(const std::map<std::int32_t, double>& values) {
  double largest = 0;
  for (const auto& [layer, value] : values) largest = std::max(largest, value);
  return largest;
}

}  // namespace

ExpectedError::ExpectedError(const Facts& a, const Facts& b, const LayerInB& in_b) {
  const Sizes of_a = get_sizes(a);
  const Sizes of_b = get_sizes(b);
  const double largest_k = std::max(get_largest(of_a.ks), get_largest(of_b.ks));
  double sum = 0;
  for (std::size_t i = 0; i < a.layers(); ++i) {
    const auto layer = static_cast<std::int32_t>(i);
    const std::int32_t other = in_b(layer);
    const double k = std::max(at_or(of_a.ks, layer, 0), at_or(of_b.ks, other, 0));
    layers_.push_back({.unit = std::max(at_or(of_a.units, layer, of_a.unit_elsewhere),
                                        at_or(of_b.units, other, of_b.unit_elsewhere)),
                       .k = k > 0 ? k : largest_k});
    const double error = of_product(layer);
    forward_.push_back(sum += error * error);
  }
}

double ExpectedError::unit(std::int32_t layer) const {
  if (layers_.empty()) return kUnitOfBf16;
  return layers_[static_cast<std::size_t>(std::max(0, layer))].unit;
}

double ExpectedError::of_product(std::int32_t layer) const {
  if (layers_.empty()) return kUnitOfBf16;
  const Layer& of = layers_[static_cast<std::size_t>(std::max(0, layer))];
  return std::sqrt(2.0 / 3.0) * of.unit + of.k * kUnitOfFp32;
}

double ExpectedError::at(const Place& place) const {
  if (forward_.empty()) return kUnitOfBf16;
  const auto layer = static_cast<std::size_t>(std::max(0, place.layer));
  const bool backward = place.tensor && std::get<0>(get_order_in_step(place)) == 1;
  if (!backward) return std::sqrt(forward_[layer]);
  // The whole forward pass, then the backward pass up to this layer.
  const double before = layer == 0 ? 0 : forward_[layer - 1];
  return std::sqrt(2 * forward_.back() - before);
}

namespace {

constexpr double kFaster = 2;  // times

std::vector<double> smooth(const std::vector<Point>& points) {
  std::vector<double> smoothed;
  for (std::size_t i = 0; i < points.size(); ++i) {
    const bool is_end = i == 0 || i + 1 == points.size();
    smoothed.push_back(is_end
                           ? points[i].value
                           : median({points[i - 1].value, points[i].value, points[i + 1].value}));
  }
  return smoothed;
}

// The maximum of a sliding window in amortized constant time. Both ends only move forward.
class SlidingMaximum {
 public:
  void add(std::size_t index, double value) {
    while (!candidates_.empty() && candidates_.back().value <= value) candidates_.pop_back();
    candidates_.push_back({index, value});
  }
  void drop_before(std::size_t index) {
    while (!candidates_.empty() && candidates_.front().index < index) candidates_.pop_front();
  }
  double get() const { return candidates_.front().value; }

 private:
  struct Candidate {
    std::size_t index = 0;
    double value = 0;
  };
  std::deque<Candidate> candidates_;
};

}  // namespace

Pace::Pace(const std::vector<Point>& points) {
  const std::vector<double> values = smooth(points);
  SlidingMaximum largest, largest_negated;
  std::size_t begin = 0;
  std::size_t end = 0;
  for (std::size_t i = 0; i < points.size(); ++i) {
    const auto at = [&](std::size_t index) { return static_cast<double>(points[index].iteration); };
    const double early = at(i) > 0 ? at(i) / kFaster : at(i);
    const double late = at(i) > 0 ? at(i) * kFaster : at(i);
    for (; end < points.size() && at(end) <= late; ++end) {
      largest.add(end, values[end]);
      largest_negated.add(end, -values[end]);
    }
    while (at(begin) < early) ++begin;
    largest.drop_before(begin);
    largest_negated.drop_before(begin);
    const double change = std::max(largest.get() - values[i], largest_negated.get() + values[i]);
    changes_.points.push_back({points[i].iteration, change});
  }
}

double Pace::at(std::int64_t iteration) const { return changes_.at(iteration).value_or(0); }

Pace get_pace_of_sizes(const Series& sizes) {
  std::vector<Point> points;
  for (const auto& [iteration, size] : sizes.points) {
    if (size > 0 && std::isfinite(size)) points.push_back({iteration, std::log2(size)});
  }
  return Pace(points);
}

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
// Bits. The floor is large enough for the median of four series; the median of more series varies
// less. With different seeds, gradients differ more than weights.
constexpr double kFloor = 0.25;
constexpr double kFloorOfGradients = 1.5;
constexpr double kCap = 4;

std::optional<double> ratio_in_bits(double a, double b) {
  const bool known = a > 0 && b > 0 && std::isfinite(a) && std::isfinite(b);
  return known ? std::optional(std::log2(b / a)) : std::nullopt;
}

// Returns the largest |log2(b / a)| in the first common iterations. Returns nullopt if there is
// none, or if the first one is not `first`.
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

// Returns the first iteration of records and scalars; scalars may begin before records.
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

// Returns the median without `own`. `sizes` is sorted and contains `own`.
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
