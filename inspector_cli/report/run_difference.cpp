#include "inspector_cli/report/run_difference.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <map>
#include <optional>
#include <set>
#include <tuple>

#include "features/diagnosis/baseline.h"
#include "features/diagnosis/sizes.h"

namespace telens::cli {
namespace {

using diagnosis::Facts;
using diagnosis::Place;
using diagnosis::Point;
using diagnosis::Series;

constexpr double kTimesChance = 3;     // the distance of the third run
constexpr double kTimesSteps = 4;      // how a series varies by itself
constexpr std::size_t kSustained = 3;  // points; a single one may be chance
constexpr std::int64_t kNearby = 2;    // iterations, over which the third run is looked at

// Half the distance of neighboring numbers, relative: 2^-(mantissa bits + 1).
struct FormatError {
  std::string_view name;
  double unit;
};
constexpr std::array kFormats{FormatError{"E2M1", 0x1p-2}, FormatError{"E5M2", 0x1p-3},
                              FormatError{"E4M3", 0x1p-4}, FormatError{"BF16", 0x1p-8},
                              FormatError{"FP16", 0x1p-11}};
constexpr double kUnitOfBf16 = 0x1p-8;
constexpr double kUnitOfFp32 = 0x1p-24;

// |a - b| over the larger one.
double distance(double a, double b) {
  if (a == b || (std::isnan(a) && std::isnan(b))) return 0;
  if (!std::isfinite(a) || !std::isfinite(b)) return std::numeric_limits<double>::infinity();
  return std::abs(a - b) / std::max(std::abs(a), std::abs(b));
}

// The unit of the coarsest format that an operand of the run was cast to, by what its GEMMs ran in;
// without one, that of E5M2 where casts were recorded, else that of BF16.
double coarsest_unit(const Facts& facts) {
  double coarsest = kUnitOfBf16;
  for (const diagnosis::GemmState& state : facts.gemm_states()) {
    for (const auto& [entry, detail] : state.entries) {
      if (!entry.ends_with(" ran")) continue;
      for (const auto& [name, unit] : kFormats) {
        if (detail.starts_with(name)) coarsest = std::max(coarsest, unit);
      }
    }
  }
  const bool casts = facts.has("scale_inv_max") || facts.has("underflows%") || facts.has("mse");
  return facts.gemm_states().empty() && casts ? 0x1p-3 : coarsest;
}

// The largest inner dimension: [M, K] x [K, N] -> [M, N] has sizes MK, KN, MN. 0: not recorded.
double largest_k(const Facts& facts) {
  double largest = 0;
  for (const Series* weight : facts.with("numel")) {
    if (weight->place.tensor != TensorName::weight || weight->points.empty()) continue;
    Place place = weight->place;
    const std::int64_t iteration = weight->points.back().iteration;
    const auto size = [&](TensorName tensor) {
      place.tensor = tensor;
      const Series* series = facts.find(place, "numel");
      return series != nullptr ? series->at(iteration).value_or(0) : 0;
    };
    const double output = size(TensorName::output);
    if (output > 0) {
      const double k =
          std::sqrt(size(TensorName::activation) * weight->points.back().value / output);
      largest = std::max(largest, k);
    }
  }
  return largest;
}

// The relative error of one product: its two casts, which round evenly within their unit, and the
// sum of K terms in FP32.
double error_of_gemm(const Facts& a, const Facts& b) {
  const double unit = std::max(coarsest_unit(a), coarsest_unit(b));
  const double casts = std::sqrt(2.0 / 3.0) * unit;
  return casts + std::max(largest_k(a), largest_k(b)) * kUnitOfFp32;
}

// Errors of one product after the other add up as squares.
double error_at(const Facts& facts, const Place& place, double of_gemm) {
  const auto layers = static_cast<double>(facts.layers());
  const bool backward = place.tensor && std::get<0>(diagnosis::turn_of(place)) == 1;
  const auto layer = static_cast<double>(std::max(0, place.layer));
  const double before = backward ? 2 * layers - layer : layer + 1;
  return of_gemm * std::sqrt(before);
}

// A series that is compared, and its name.
struct Quantity {
  Series series;
  std::string name;
};

std::vector<Quantity> quantities_of(const Facts& facts) {
  std::vector<Quantity> all;
  for (const TensorName tensor : kAllTensors) {
    for (Series& series : diagnosis::root_mean_squares(facts, tensor)) {
      all.push_back({std::move(series), "root mean square"});
    }
  }
  if (!all.empty()) return all;
  for (const Series* amax : facts.with("cur_amax")) {
    all.push_back({*amax, "cur_amax"});
  }
  return all;
}

// Series of another run by the names of their layers.
class ByName {
 public:
  ByName(const Facts& facts, const LayerMap& map) : map_(map) {
    for (Quantity& each : quantities_of(facts)) {
      known_.emplace(key_of(facts.layer_name(each.series.place.layer), each.series.place),
                     std::move(each.series));
    }
    if (facts.ranks() == 1 && !known_.empty()) only_rank_ = std::get<3>(known_.begin()->first);
  }

  // nullptr: the run has none.
  const Series* find(const Facts& of, const Place& place) const {
    const std::string name = mapped(of.layer_name(place.layer));
    auto found = known_.find(key_of(name, place));
    if (found == known_.end() && only_rank_) {
      Place other = place;
      other.rank = *only_rank_;
      found = known_.find(key_of(name, other));
    }
    return found == known_.end() ? nullptr : &found->second;
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
  using Key = std::tuple<std::string, int, int, int>;
  static Key key_of(const std::string& layer, const Place& place) {
    return {layer, place.tensor ? static_cast<int>(*place.tensor) : -1,
            place.gemm ? static_cast<int>(*place.gemm) : -1, place.rank};
  }

  const LayerMap& map_;
  std::map<Key, Series> known_;
  std::optional<int> only_rank_;
};

// How far a third run is from A up to and shortly after an iteration.
double chance_by_run(const Series& a, const Series& other, std::int64_t iteration) {
  double largest = 0;
  for (const Point& point : a.points) {
    if (point.iteration > iteration + kNearby) break;
    const auto value = other.at(point.iteration);
    const double apart = value ? distance(point.value, *value) : 0;
    if (std::isfinite(apart)) largest = std::max(largest, apart);
  }
  return kTimesChance * largest;
}

// How A varies from one iteration to the next.
double chance_by_steps(const Series& a) {
  std::vector<double> steps;
  for (std::size_t i = 1; i < a.points.size(); ++i) {
    const double step = distance(a.points[i].value, a.points[i - 1].value);
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

// The first of kSustained pairs on end, or of all that are left, that lie beyond the tolerance.
template <typename Tolerance>
std::optional<Divergence> first_excess(const std::vector<Pair>& pairs, const Tolerance& tolerance) {
  std::size_t beyond = 0;
  for (std::size_t i = 0; i < pairs.size(); ++i) {
    const bool is_beyond = distance(pairs[i].a, pairs[i].b) > tolerance(pairs[i].iteration);
    beyond = is_beyond ? beyond + 1 : 0;
    const bool is_last = i + 1 == pairs.size();
    if (beyond == 0 || (beyond < kSustained && !is_last)) continue;
    const Pair& first = pairs[i + 1 - beyond];
    return Divergence{.first = first.iteration,
                      .a = first.a,
                      .b = first.b,
                      .difference = distance(first.a, first.b),
                      .tolerance = tolerance(first.iteration)};
  }
  return std::nullopt;
}

void compare_tensors(const Facts& a, const Facts& b, const Facts* spread, const LayerMap& map,
                     RunDifference& result) {
  const ByName in_b(b, map);
  const LayerMap same_names;
  std::optional<ByName> in_spread;
  if (spread != nullptr) in_spread.emplace(*spread, same_names);
  const double of_gemm = error_of_gemm(a, b);
  for (const auto& [series, name] : quantities_of(a)) {
    const Series* other = in_b.find(a, series.place);
    if (other == nullptr) continue;
    const auto pairs = common(series.points, *other);
    if (pairs.empty()) continue;
    ++result.compared;
    const Series* third = in_spread ? in_spread->find(a, series.place) : nullptr;
    const double by_format = error_at(a, series.place, of_gemm);
    const double by_steps = third == nullptr ? chance_by_steps(series) : 0;
    auto found = first_excess(pairs, [&](std::int64_t iteration) {
      const double chance = third != nullptr ? chance_by_run(series, *third, iteration) : by_steps;
      return std::max(by_format, chance);
    });
    if (!found) continue;
    found->place = series.place;
    found->layer = a.layer_name(series.place.layer);
    found->quantity = name;
    result.divergences.push_back(std::move(*found));
  }
}

std::optional<Series> loss_of(const Facts& facts) {
  for (const diagnosis::Scalars& each : facts.scalars()) {
    if (each.name == "loss") return Series{.place = {}, .points = each.points};
  }
  return std::nullopt;
}

void compare_losses(const Facts& a, const Facts& b, const Facts* spread, RunDifference& result) {
  const auto of_a = loss_of(a);
  const auto of_b = loss_of(b);
  if (!of_a || !of_b) return;
  ++result.compared;
  const auto third = spread != nullptr ? loss_of(*spread) : std::nullopt;
  const double by_steps = chance_by_steps(*of_a);
  auto found = first_excess(common(of_a->points, *of_b), [&](std::int64_t iteration) {
    return third ? chance_by_run(*of_a, *third, iteration) : by_steps;
  });
  if (!found) return;
  found->quantity = "loss";
  result.divergences.push_back(std::move(*found));
}

std::vector<std::string> layers_of(const Facts& facts) {
  std::vector<std::string> names;
  for (std::size_t i = 0; i < facts.layers(); ++i) {
    names.push_back(facts.layer_name(static_cast<std::int32_t>(i)));
  }
  return names;
}

}  // namespace

RunDifference compare_runs(const Facts& a, const Facts& b, const Facts* spread,
                           const LayerMap& map) {
  RunDifference result;
  compare_tensors(a, b, spread, map, result);
  compare_losses(a, b, spread, result);
  std::ranges::stable_sort(result.divergences, {}, [](const Divergence& each) {
    // A loss comes between the forward and the backward pass.
    constexpr std::int32_t kLast = std::numeric_limits<std::int32_t>::max();
    const auto turn =
        each.layer.empty() ? diagnosis::Turn{0, kLast, 0} : diagnosis::turn_of(each.place);
    return std::tuple(each.first, turn, each.place.rank);
  });
  const ByName names(b, map);
  const auto of_b = layers_of(b);
  std::set<std::string> left(of_b.begin(), of_b.end());
  for (const std::string& name : layers_of(a)) {
    if (left.erase(names.mapped(name)) == 0) result.only_in_a.push_back(name);
  }
  result.only_in_b.assign(left.begin(), left.end());
  return result;
}

std::vector<std::string_view> compared_statistics() {
  return {"l2_norm", "numel", "std", "mean", "cur_amax", "scale_inv_max", "underflows%", "mse"};
}

}  // namespace telens::cli
