#include "inspector_cli/report/seed_scatter.h"

#include <algorithm>
#include <cmath>
#include <deque>
#include <numeric>
#include <optional>

namespace telens::cli {
namespace {

using diagnosis::Facts;
using diagnosis::Point;
using diagnosis::Series;

constexpr std::size_t kWindow = 8;        // iterations
constexpr double kSameWeights = 0x1p-20;  // bits: norms are sums in another order
constexpr double kSameData = 0x1p-7;      // bits: a batch of 4096 normal values varies by 0.016
constexpr std::size_t kFirstBatches = 3;

std::optional<double> ratio_in_bits(double a, double b) {
  const bool known = a > 0 && b > 0 && std::isfinite(a) && std::isfinite(b);
  return known ? std::optional(std::log2(b / a)) : std::nullopt;
}

// The largest |log2(b / a)| in the first common iterations; nullopt if there are none.
std::optional<double> first_distance(const Series& a, const Series& b, std::size_t iterations) {
  std::optional<double> largest;
  std::size_t seen = 0;
  for (const auto& [iteration, value] : a.points) {
    const auto other = b.at(iteration);
    if (!other) continue;
    const auto ratio = ratio_in_bits(value, *other);
    if (ratio) largest = std::max(largest.value_or(0), std::abs(*ratio));
    if (++seen == iterations) break;
  }
  return largest;
}

bool have_other_weights(const std::vector<SizePair>& pairs) {
  std::size_t weights = 0;
  std::size_t others = 0;
  for (const SizePair& pair : pairs) {
    if (pair.a->place.tensor != TensorName::weight) continue;
    ++weights;
    if (first_distance(*pair.a, *pair.b, 1).value_or(0) > kSameWeights) ++others;
  }
  return 2 * others > weights;
}

}  // namespace

bool have_other_seeds(const std::vector<SizePair>& pairs, const Facts& a, const Facts& b) {
  if (have_other_weights(pairs)) return true;
  const SizePair* first = nullptr;
  for (const SizePair& pair : pairs) {
    if (pair.a->place.tensor != TensorName::activation) continue;
    if (first == nullptr || pair.a->place.layer < first->a->place.layer) first = &pair;
  }
  if (first == nullptr) return false;
  // After a norm the root mean square is 1 for any data.
  const Series* amax_a = a.find(first->a->place, "cur_amax");
  const Series* amax_b = b.find(first->b->place, "cur_amax");
  double distance = first_distance(*first->a, *first->b, kFirstBatches).value_or(0);
  if (amax_a != nullptr && amax_b != nullptr) {
    distance = std::max(distance, first_distance(*amax_a, *amax_b, kFirstBatches).value_or(0));
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
      const auto count = static_cast<double>(last.size());
      const double mean =
          last.empty() ? *ratio : std::accumulate(last.begin(), last.end(), 0.0) / count;
      means_[of_a][iteration] = mean;
      for (const bool of_kind : {false, true}) {
        Sum& sum = sums_[make_key(of_a->place, of_kind, iteration)];
        sum.squares += mean * mean;
        ++sum.count;
      }
      last.push_back(*ratio);
      if (last.size() > kWindow) last.pop_front();
    }
  }
}

SeedScatter::Key SeedScatter::make_key(const diagnosis::Place& place, bool of_kind,
                                       std::int64_t iteration) const {
  return {static_cast<int>(*place.tensor), place.rank,
          of_kind ? facts_.select_part(place.layer) : "", iteration};
}

double SeedScatter::at(const Series& series, std::int64_t iteration) const {
  const auto means = means_.find(&series);
  if (means == means_.end()) return 0;
  const auto own = means->second.find(iteration);
  if (own == means->second.end()) return 0;
  double largest = 0;
  for (const bool of_kind : {false, true}) {
    const Sum& sum = sums_.at(make_key(series.place, of_kind, iteration));
    if (sum.count < 2) continue;
    const double squares = std::max(0.0, sum.squares - own->second * own->second);
    largest = std::max(largest, std::sqrt(squares / static_cast<double>(sum.count - 1)));
  }
  return largest;
}

}  // namespace telens::cli
