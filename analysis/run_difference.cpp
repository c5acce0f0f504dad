#include "analysis/run_difference.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>

#include "analysis/common_factor.h"
#include "analysis/divergence.h"
#include "analysis/expected_difference.h"
#include "analysis/rules/recorded_rate.h"

namespace telens::analysis {
namespace {

using Names = std::set<std::string, std::less<>>;

// Returns the number of `longer` names by the prefix without which they are in `shorter`.
std::map<std::string, std::size_t> count_prefixes(std::span<const std::string> longer,
                                                  const Names& shorter) {
  std::map<std::string, std::size_t> counts;
  for (const std::string& name : longer) {
    for (auto dot = name.find('.'); dot != std::string::npos; dot = name.find('.', dot + 1)) {
      const std::string_view rest = std::string_view(name).substr(dot + 1);
      if (shorter.contains(rest)) ++counts[name.substr(0, dot + 1)];
    }
  }
  return counts;
}

}  // namespace

std::string map_layer(std::string name, const LayerMap& map) {
  for (const auto& [from, to, at_start] : map) {
    const auto at = name.find(from);
    if (at == std::string::npos || (at_start && at > 0)) continue;
    name.replace(at, from.size(), to);
    break;
  }
  return name;
}

LayerMap find_layer_map(std::span<const std::string> a, std::span<const std::string> b) {
  const Names names_a(a.begin(), a.end());
  const Names names_b(b.begin(), b.end());
  const std::size_t fewer = std::min(names_a.size(), names_b.size());
  const auto equal = static_cast<std::size_t>(std::ranges::count_if(
      names_a, [&](const std::string& name) { return names_b.contains(name); }));
  const auto is_half = [&](std::size_t count) { return count > 0 && 2 * count >= fewer; };
  if (is_half(equal)) return {};
  std::size_t most = equal;
  LayerMap best;
  for (const auto& [prefix, count] : count_prefixes(a, names_b)) {
    if (count > most && is_half(count)) {
      most = count;
      best = {{prefix, "", true}};
    }
  }
  for (const auto& [prefix, count] : count_prefixes(b, names_a)) {
    if (count > most && is_half(count)) {
      most = count;
      best = {{"", prefix, true}};
    }
  }
  return best;
}

namespace {

constexpr std::string_view kLoss = "loss";
constexpr double kRounding = 0x1p-20;  // relative error of a few roundings to FP32
constexpr double kMostByFormat = 0.5;  // a factor of 2 is a difference at any depth
// Tolerances for runs with different seeds. The loss of small models varies by 0.1 bits. Other
// numbers, such as a gradient norm, have the tolerance of gradients in a model with few layers
// (SeedScatter).
constexpr double kLossOfSeeds = 0.1;  // bits
constexpr double kOtherOfSeeds = 1.5;
constexpr double kShareOfSeeds = 0.1;

// The kind of a scalar, which determines its tolerance.
enum class Role : std::uint8_t { loss, rate, share, other };

Role get_role(std::string_view name) {
  if (name == kLoss) return Role::loss;
  if (is_rate(name)) return Role::rate;
  return name.ends_with('%') ? Role::share : Role::other;
}

Series make_series(const Scalars& scalars) { return {.place = {}, .points = scalars.points}; }

const Scalars* find_scalars(const Facts& facts, const Scalars& like) {
  for (const Scalars& each : facts.scalars()) {
    const bool is_same_rank = each.rank == like.rank || facts.ranks() == 1;
    if (each.name == like.name && is_same_rank) return &each;
  }
  return nullptr;
}

class ScalarTolerance {
 public:
  ScalarTolerance(Role role, const Series& a, std::optional<Series> third, double by_format,
                  bool other_seeds)
      : a_(a), role_(role), third_(std::move(third)), kind_(get_kind(role)) {
    const bool has_error = role == Role::share || role == Role::other;
    explained_ = std::max(kRounding, has_error ? std::min(by_format, kMostByFormat) : 0);
    if (third_) return;
    explained_ = std::max(explained_, chance_by_steps(kind_, a));
    if (other_seeds) allow_other_seeds();
  }

  static Compared get_kind(Role role) {
    return role == Role::share ? Compared::share : Compared::size;
  }

  double at(std::int64_t iteration) const {
    if (third_) return std::max(explained_, chance_by_run(kind_, a_, *third_, iteration));
    const double faster = pace_.at(iteration);
    return faster > 0 ? from_bits(to_bits(explained_) + faster) : explained_;
  }

 private:
  // A learning rate does not depend on the seed.
  void allow_other_seeds() {
    if (role_ == Role::rate) return;
    if (role_ == Role::share) {
      explained_ = std::max(explained_, kShareOfSeeds);
      return;
    }
    const double least = role_ == Role::loss ? kLossOfSeeds : kOtherOfSeeds;
    explained_ = std::max(explained_, from_bits(least));
    pace_ = get_pace_of_sizes(a_);
  }

  const Series& a_;
  Role role_;
  std::optional<Series> third_;
  Compared kind_;
  double explained_ = 0;
  Pace pace_ = {};
};

Place get_place(const Facts& facts, const Scalars& scalars) {
  return {.rank = facts.ranks() > 1 ? scalars.rank : kAllRanks};
}

// Returns the first series of losses; nullopt if the run has none.
std::optional<Series> get_loss(const Facts& facts) {
  for (const Scalars& each : facts.scalars()) {
    if (each.name == kLoss) return make_series(each);
  }
  return std::nullopt;
}

// Compares scalars of the same name and rank and adds divergences and scalars without a counterpart
// to `result`. `spread`: a third run or nullptr, as for compare_runs(). `by_format`: the relative
// error of a gradient that formats explain; scalars except losses and learning rates may differ by
// as much.
void compare_scalars(const Facts& a, const Facts& b, const Facts* spread, double by_format,
                     RunDifference& result) {
  std::set<const Scalars*> used;
  for (const Scalars& each : a.scalars()) {
    const Scalars* other = find_scalars(b, each);
    const Series of_a = make_series(each);
    const Series of_b = other != nullptr ? make_series(*other) : Series();
    const Place place = get_place(a, each);
    if (!have_common_iteration(of_a, of_b)) {
      result.unmatched_in_a.push_back({.place = place, .layer = {}, .quantity = each.name});
      continue;
    }
    used.insert(other);
    ++result.compared;
    const Scalars* third = spread != nullptr ? find_scalars(*spread, each) : nullptr;
    const Role role = get_role(each.name);
    const ScalarTolerance tolerance(
        role, of_a, third != nullptr ? std::optional(make_series(*third)) : std::nullopt, by_format,
        result.other_seeds);
    auto found = find_divergence(ScalarTolerance::get_kind(role), of_a, of_b,
                                 [&](std::int64_t iteration) { return tolerance.at(iteration); });
    if (!found) continue;
    found->place = place;
    found->quantity = each.name;
    result.divergences.push_back(std::move(*found));
  }
  for (const Scalars& each : b.scalars()) {
    if (used.contains(&each)) continue;
    result.unmatched_in_b.push_back(
        {.place = get_place(b, each), .layer = {}, .quantity = each.name});
  }
}

// Finds series of run B for series of run A, by the names of their layers.
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

  // Returns nullptr if the run does not contain such a series.
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

  // Returns the stored series of a quantity of B itself.
  const Series* find_own(const Facts& own, const Quantity& quantity) const {
    const Place& place = quantity.series.place;
    const auto found = known_.find(make_key(quantity.kind, own.layer_name(place.layer), place));
    return found == known_.end() ? nullptr : &found->second;
  }

  // Returns the id in B of a layer of A, or kNoName if B does not have it.
  std::int32_t layer(const std::string& name) const {
    const auto found = layers_.find(mapped(name));
    return found == layers_.end() ? record::kNoName : found->second;
  }

  std::string mapped(std::string name) const { return map_layer(std::move(name), map_); }

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

// Returns the part of a distance that formats explain.
double by_format(const ExpectedError& error, Compared kind, const Place& place) {
  if (kind == Compared::size) return error.at(place);
  return kind == Compared::cast_error ? error.unit(place.layer) : error.of_product(place.layer);
}

// Aligns the series of the two runs and collects series without a counterpart.
class Comparison {
 public:
  Comparison(const Facts& a, const Facts& b, const Facts* spread, const LayerMap& map)
      : a_(a),
        b_(b),
        in_b_(b, map),
        error_(a, b, [&](std::int32_t layer) { return in_b_.layer(a.layer_name(layer)); }),
        error_of_a_(a, a, [](std::int32_t layer) { return layer; }),
        error_of_b_(b, b, [](std::int32_t layer) { return layer; }),
        quantities_(list_quantities(a)) {
    if (spread != nullptr) in_spread_.emplace(*spread, kSameNames);
    // If A has no casts, their errors are zero. B may not have them either.
    if (!a.has("mse")) {
      for (Quantity& each : errors_of_no_cast(quantities_)) no_casts_.push_back(std::move(each));
    }
  }

  const ByName& in_b() const { return in_b_; }

  // Returns the relative error that formats explain after a whole forward and backward pass.
  double get_error_of_step() const {
    return error_.at({.layer = 0, .tensor = TensorName::gradient});
  }

  void compare_tensors(RunDifference& result) {
    find_scatter(result);
    for (const Quantity& each : quantities_) {
      if (!compare(each, result)) {
        result.unmatched_in_a.push_back(
            {each.series.place, a_.layer_name(each.series.place.layer), std::string(each.name)});
      }
    }
    for (const Quantity& each : no_casts_) compare(each, result);
    for (const Quantity& each : list_quantities(b_)) {
      if (const Series* own = in_b_.find_own(b_, each); used_.contains(own)) continue;
      result.unmatched_in_b.push_back(
          {each.series.place, b_.layer_name(each.series.place.layer), std::string(each.name)});
    }
  }

  // Adds factors that many series have in common. Call after compare_tensors(): a factor is not
  // reported if most of its series were reported individually.
  void compare_together(const LossFactor& loss_factor, RunDifference& result) const {
    std::vector<ReportedFactor> reported;
    for (const auto& [key, indices] : group_by_tensor()) {
      add_common(indices, loss_factor, reported, result);
    }
  }

 private:
  // Different seeds are detected by the initial values if a third run is not given.
  void find_scatter(RunDifference& result) {
    std::vector<SizePair> pairs;
    for (const Quantity& each : quantities_) {
      if (each.kind != Compared::size || !each.series.place.tensor) continue;
      const Series* other = in_b_.find(a_, each.kind, each.series.place);
      if (other != nullptr) pairs.push_back({&each.series, other});
    }
    result.other_seeds = have_other_seeds(pairs, a_, b_);
    if (result.other_seeds && !in_spread_) scatter_.emplace(pairs, a_);
  }

  double by_seeds(Compared kind, const Series& a, std::int64_t iteration) const {
    if (!scatter_ || kind != Compared::size || !a.place.tensor) return 0;
    return from_bits(scatter_->tolerance(a, iteration));
  }

  // Returns the difference to expect because one of two trainings with different seeds learns
  // faster; 0 with equal seeds.
  Pace get_pace(Compared kind, const Series& a) const {
    return scatter_ && kind == Compared::size ? get_pace_of_sizes(a) : Pace();
  }

  struct ComparedSeries {
    SeriesPair pair;
    bool diverges = false;
  };
  using Indices = std::vector<std::size_t>;  // in compared_
  // A common factor that was reported.
  struct ReportedFactor {
    std::set<std::size_t> series;  // in compared_
    std::int64_t first = 0;        // iteration
  };

  // Returns false if B does not have the series, or if there is no common iteration.
  bool compare(const Quantity& quantity, RunDifference& result) {
    const auto& [kind, name, series] = quantity;
    const Series* other = in_b_.find(a_, kind, series.place);
    if (other == nullptr) return false;
    if (!have_common_iteration(series, *other)) return false;
    used_.insert(other);
    ++result.compared;
    const Series* third = in_spread_ ? in_spread_->find(a_, kind, series.place) : nullptr;
    const double explained = by_format(error_, kind, series.place);
    const double by_steps = third == nullptr ? chance_by_steps(kind, series) : 0;
    const Pace pace = get_pace(kind, series);
    auto found = find_divergence(kind, series, *other, [&](std::int64_t iteration) {
      const double chance =
          third != nullptr ? chance_by_run(kind, series, *third, iteration) : by_steps;
      const double tolerance = std::max({explained, chance, by_seeds(kind, series, iteration)});
      const double faster = pace.at(iteration);
      return faster > 0 ? from_bits(to_bits(tolerance) + faster) : tolerance;
    });
    if (kind == Compared::size && series.place.tensor) {
      const SeriesPair pair{&series, other, third, error_of_a_.at(series.place),
                            error_of_b_.at(other->place)};
      compared_.push_back({pair, found.has_value()});
    }
    if (!found) return true;
    found->place = series.place;
    found->layer = a_.layer_name(series.place.layer);
    found->quantity = name;
    result.divergences.push_back(std::move(*found));
    return true;
  }

  // Returns the series by tensor and rank, for all layers and for each kind of layer.
  std::map<std::tuple<int, int, std::string>, Indices> group_by_tensor() const {
    std::map<std::tuple<int, int, std::string>, Indices> groups;
    for (std::size_t i = 0; i < compared_.size(); ++i) {
      const Place& place = compared_[i].pair.a->place;
      const int tensor = static_cast<int>(*place.tensor);
      groups[{tensor, place.rank, ""}].push_back(i);
      groups[{tensor, place.rank, a_.get_kind(place.layer)}].push_back(i);
    }
    return groups;
  }

  void add_common(const Indices& indices, const LossFactor& loss_factor,
                  std::vector<ReportedFactor>& reported, RunDifference& result) const {
    std::vector<SeriesPair> pairs;
    for (const std::size_t i : indices) pairs.push_back(compared_[i].pair);
    const bool backward = std::get<0>(get_order_in_step(pairs.front().a->place)) == 1;
    const auto found = find_common_factor(
        pairs, backward ? loss_factor : [](std::int64_t) { return 1.0; }, scatter_.has_value());
    if (!found) return;
    const auto diverges_by_itself = [&](std::size_t i) { return compared_[indices[i]].diverges; };
    const auto diverging =
        static_cast<std::size_t>(std::ranges::count_if(found->pairs, diverges_by_itself));
    if (2 * diverging >= found->pairs.size()) return;
    const ComparedSeries& origin = compared_[indices[found->origin]];
    Divergence divergence{
        .place = origin.pair.a->place,
        .layer = a_.layer_name(origin.pair.a->place.layer),
        .quantity = fmt::format("common factor of {} root mean squares", found->pairs.size()),
        .series = found->pairs.size(),
        .first = found->first,
        .last = found->last,
        .a = 1,
        .b = found->factor};
    divergence.difference = get_distance(Compared::size, 1, found->factor);
    divergence.tolerance = get_distance(Compared::size, 1, found->tolerance);
    // Layers of the same kind are a subset of all layers.
    ReportedFactor own{.series = {}, .first = found->first};
    for (const std::size_t i : found->pairs) own.series.insert(indices[i]);
    const auto has_all = [&](const ReportedFactor& known) {
      return known.first <= own.first && std::ranges::includes(known.series, own.series);
    };
    if (std::ranges::any_of(reported, has_all)) return;
    reported.push_back(std::move(own));
    result.divergences.push_back(std::move(divergence));
  }

  static const LayerMap kSameNames;
  const Facts& a_;
  const Facts& b_;
  ByName in_b_;
  std::optional<ByName> in_spread_;
  std::optional<SeedScatter> scatter_;             // set for runs with different seeds
  ExpectedError error_, error_of_a_, error_of_b_;  // for the coarser formats, for A, for B
  std::vector<Quantity> quantities_, no_casts_;
  std::set<const Series*> used_;  // of in_b_
  std::vector<ComparedSeries> compared_;
};

const LayerMap Comparison::kSameNames;

// Returns the ratio of the larger to the smaller loss in each iteration; 1 if it is unknown.
LossFactor get_loss_factor(const Facts& a, const Facts& b) {
  return [of_a = get_loss(a), of_b = get_loss(b)](std::int64_t iteration) {
    const auto loss_a = of_a ? of_a->at(iteration) : std::nullopt;
    const auto loss_b = of_b ? of_b->at(iteration) : std::nullopt;
    if (!loss_a || !loss_b || !(*loss_a > 0) || !(*loss_b > 0)) return 1.0;
    const double factor = std::max(*loss_a / *loss_b, *loss_b / *loss_a);
    return std::isfinite(factor) ? factor : 1.0;
  };
}

// A loss comes between the forward and the backward pass, other scalars come after both.
StepOrder get_order_in_step(const Divergence& each) {
  constexpr std::int32_t kLast = std::numeric_limits<std::int32_t>::max();
  if (each.layer.empty()) return {each.quantity == "loss" ? 0 : 2, kLast, 0};
  return get_order_in_step(each.place);
}

}  // namespace

RunDifference compare_runs(const Facts& a, const Facts& b, const Facts* spread,
                           const LayerMap& map) {
  RunDifference result;
  Comparison comparison(a, b, spread, map);
  comparison.compare_tensors(result);
  comparison.compare_together(get_loss_factor(a, b), result);
  compare_scalars(a, b, spread, comparison.get_error_of_step(), result);
  std::ranges::stable_sort(result.divergences, {}, [](const Divergence& each) {
    return std::tuple(each.first, get_order_in_step(each), each.place.rank);
  });
  std::set<std::string> left(b.layer_names().begin(), b.layer_names().end());
  for (const std::string& name : a.layer_names()) {
    if (left.erase(comparison.in_b().mapped(name)) == 0) {
      result.only_in_a.push_back(name);
    } else {
      ++result.common_layers;
    }
  }
  result.only_in_b.assign(left.begin(), left.end());
  return result;
}

}  // namespace telens::analysis
