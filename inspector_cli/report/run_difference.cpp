#include "inspector_cli/report/run_difference.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <optional>
#include <set>
#include <tuple>

#include "features/diagnosis/baseline.h"
#include "inspector_cli/report/compared_series.h"
#include "inspector_cli/report/expected_error.h"

namespace telens::cli {
namespace {

using diagnosis::Facts;
using diagnosis::Place;
using diagnosis::Point;
using diagnosis::Series;

constexpr double kTimesChance = 3;     // the distance of the third run
constexpr double kTimesSteps = 4;      // how a series varies by itself
constexpr std::size_t kSustained = 3;  // points; a single one may be chance
constexpr double kTimesTolerance = 3;  // in bits: a single point that is further off is no chance
constexpr std::int64_t kNearby = 2;    // iterations, over which the third run is looked at

// |a - b|, of sizes over the larger one; errors are relative already.
double distance(Compared kind, double a, double b) {
  if (a == b || (std::isnan(a) && std::isnan(b))) return 0;
  if (!std::isfinite(a) || !std::isfinite(b)) return std::numeric_limits<double>::infinity();
  return std::abs(a - b) / (kind == Compared::size ? std::max(std::abs(a), std::abs(b)) : 1);
}

// Series of another run by the names of their layers.
class ByName {
 public:
  ByName(const Facts& facts, const LayerMap& map) : map_(map) {
    for (Quantity& each : list_quantities(facts)) {
      const std::string& layer = facts.layer_name(each.series.place.layer);
      known_.emplace(make_key(each.kind, layer, each.series.place), std::move(each.series));
    }
    if (facts.ranks() == 1 && !known_.empty()) only_rank_ = std::get<4>(known_.begin()->first);
    for (std::size_t i = 0; i < facts.layers(); ++i) {
      const auto id = static_cast<std::int32_t>(i);
      layers_.emplace(facts.layer_name(id), id);
    }
  }

  // nullptr: the run has none.
  const Series* find(const Facts& of, Compared kind, const Place& place) const {
    const std::string name = mapped(of.layer_name(place.layer));
    auto found = known_.find(make_key(kind, name, place));
    if (found == known_.end() && only_rank_) {
      Place other = place;
      other.rank = *only_rank_;
      found = known_.find(make_key(kind, name, other));
    }
    return found == known_.end() ? nullptr : &found->second;
  }

  // The id of another run's layer in this one.
  std::int32_t layer(const std::string& name) const {
    const auto found = layers_.find(mapped(name));
    return found == layers_.end() ? record::kNoName : found->second;
  }

  std::string mapped(std::string name) const {
    for (const auto& [from, to] : map_) {
      const auto at = name.find(from);
      if (at == std::string::npos) continue;
      name.replace(at, from.size(), to);
      break;
    }
    return name;
  }

 private:
  using Key = std::tuple<Compared, std::string, int, int, int>;
  static Key make_key(Compared kind, const std::string& layer, const Place& place) {
    return {kind, layer, place.tensor ? static_cast<int>(*place.tensor) : -1,
            place.gemm ? static_cast<int>(*place.gemm) : -1, place.rank};
  }

  const LayerMap& map_;
  std::map<Key, Series> known_;
  std::map<std::string, std::int32_t> layers_;
  std::optional<int> only_rank_;
};

// How far a third run is from A up to and shortly after an iteration.
double chance_by_run(Compared kind, const Series& a, const Series& other, std::int64_t iteration) {
  double largest = 0;
  for (const Point& point : a.points) {
    if (point.iteration > iteration + kNearby) break;
    const auto value = other.at(point.iteration);
    const double apart = value ? distance(kind, point.value, *value) : 0;
    if (std::isfinite(apart)) largest = std::max(largest, apart);
  }
  return kTimesChance * largest;
}

// How A varies from one iteration to the next.
double chance_by_steps(Compared kind, const Series& a) {
  std::vector<double> steps;
  for (std::size_t i = 1; i < a.points.size(); ++i) {
    const double step = distance(kind, a.points[i].value, a.points[i - 1].value);
    if (std::isfinite(step)) steps.push_back(step);
  }
  return steps.empty() ? 0 : kTimesSteps * diagnosis::median(std::move(steps));
}

struct Pair {
  std::int64_t iteration = 0;
  double a = 0, b = 0;
};

std::vector<Pair> common(const std::vector<Point>& a, const Series& b) {
  std::vector<Pair> pairs;
  for (const auto& [iteration, value] : a) {
    if (const auto other = b.at(iteration)) pairs.push_back({iteration, value, *other});
  }
  return pairs;
}

// Pairs on end that lie beyond the tolerance: [first, end).
struct Excess {
  std::size_t first = 0, end = 0;
  bool by_far = false;  // one of them is no chance

  std::size_t size() const { return end - first; }
};

// |log2(a / b)| of the distance of two sizes.
double to_bits(double distance) {
  return distance < 1 ? -std::log2(1 - distance) : std::numeric_limits<double>::infinity();
}

template <typename Tolerance>
Excess next_excess(Compared kind, const std::vector<Pair>& pairs, std::size_t begin,
                   const Tolerance& tolerance) {
  Excess excess{begin, begin};
  for (std::size_t i = begin; i < pairs.size(); ++i) {
    const double apart = distance(kind, pairs[i].a, pairs[i].b);
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

// The first excess of kSustained pairs; of sizes also one that lasts up to the last pair, or goes
// by far. The scale of a single cast may be off for an iteration or two.
template <typename Tolerance>
std::optional<Divergence> first_excess(Compared kind, const std::vector<Pair>& pairs,
                                       const Tolerance& tolerance) {
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
                     .difference = distance(kind, first.a, first.b),
                     .tolerance = tolerance(first.iteration)};
    if (excess.end < pairs.size()) found.last = pairs[excess.end - 1].iteration;
    return found;
  }
  return std::nullopt;
}

// The part of a distance that formats explain.
double by_format(const ExpectedError& error, Compared kind, const Place& place) {
  if (kind == Compared::size) return error.at(place);
  return kind == Compared::cast_error ? error.unit(place.layer) : error.of_product(place.layer);
}

std::vector<Quantity> quantities_to_compare(const Facts& a) {
  std::vector<Quantity> all = list_quantities(a);
  if (a.has("mse")) return all;
  for (Quantity& each : errors_of_no_cast(all)) all.push_back(std::move(each));
  return all;
}

void compare_tensors(const Facts& a, const ByName& in_b, const ExpectedError& error,
                     const Facts* spread, RunDifference& result) {
  const LayerMap same_names;
  std::optional<ByName> in_spread;
  if (spread != nullptr) in_spread.emplace(*spread, same_names);
  for (const auto& [kind, name, series] : quantities_to_compare(a)) {
    const Series* other = in_b.find(a, kind, series.place);
    if (other == nullptr) continue;
    const auto pairs = common(series.points, *other);
    if (pairs.empty()) continue;
    ++result.compared;
    const Series* third = in_spread ? in_spread->find(a, kind, series.place) : nullptr;
    const double explained = by_format(error, kind, series.place);
    const double by_steps = third == nullptr ? chance_by_steps(kind, series) : 0;
    auto found = first_excess(kind, pairs, [&](std::int64_t iteration) {
      const double chance =
          third != nullptr ? chance_by_run(kind, series, *third, iteration) : by_steps;
      return std::max(explained, chance);
    });
    if (!found) continue;
    found->place = series.place;
    found->layer = a.layer_name(series.place.layer);
    found->quantity = name;
    result.divergences.push_back(std::move(*found));
  }
}

std::optional<Series> get_loss(const Facts& facts) {
  for (const diagnosis::Scalars& each : facts.scalars()) {
    if (each.name == "loss") return Series{.place = {}, .points = each.points};
  }
  return std::nullopt;
}

void compare_losses(const Facts& a, const Facts& b, const Facts* spread, RunDifference& result) {
  const auto of_a = get_loss(a);
  const auto of_b = get_loss(b);
  if (!of_a || !of_b) return;
  ++result.compared;
  const auto third = spread != nullptr ? get_loss(*spread) : std::nullopt;
  const double by_steps = chance_by_steps(Compared::size, *of_a);
  const auto tolerance = [&](std::int64_t iteration) {
    return third ? chance_by_run(Compared::size, *of_a, *third, iteration) : by_steps;
  };
  auto found = first_excess(Compared::size, common(of_a->points, *of_b), tolerance);
  if (!found) return;
  found->quantity = "loss";
  result.divergences.push_back(std::move(*found));
}

std::vector<std::string> get_layers(const Facts& facts) {
  std::vector<std::string> names;
  for (std::size_t i = 0; i < facts.layers(); ++i) {
    names.push_back(facts.layer_name(static_cast<std::int32_t>(i)));
  }
  return names;
}

// A loss comes between the forward and the backward pass.
diagnosis::Turn get_order_in_step(const Divergence& each) {
  constexpr std::int32_t kLast = std::numeric_limits<std::int32_t>::max();
  if (each.layer.empty()) return {0, kLast, 0};
  return diagnosis::get_order_in_step(each.place);
}

}  // namespace

RunDifference compare_runs(const Facts& a, const Facts& b, const Facts* spread,
                           const LayerMap& map) {
  RunDifference result;
  const ByName in_b(b, map);
  const ExpectedError error(a, b,
                            [&](std::int32_t layer) { return in_b.layer(a.layer_name(layer)); });
  compare_tensors(a, in_b, error, spread, result);
  compare_losses(a, b, spread, result);
  std::ranges::stable_sort(result.divergences, {}, [](const Divergence& each) {
    return std::tuple(each.first, get_order_in_step(each), each.place.rank);
  });
  const auto of_b = get_layers(b);
  std::set<std::string> left(of_b.begin(), of_b.end());
  for (const std::string& name : get_layers(a)) {
    if (left.erase(in_b.mapped(name)) == 0) result.only_in_a.push_back(name);
  }
  result.only_in_b.assign(left.begin(), left.end());
  return result;
}

}  // namespace telens::cli
