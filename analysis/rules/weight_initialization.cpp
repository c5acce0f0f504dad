#include <fmt/format.h>

#include <algorithm>
#include <climits>
#include <cmath>
#include <cstdint>
#include <map>
#include <numeric>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "analysis/baseline.h"
#include "analysis/findings.h"
#include "analysis/rules/norm_gains.h"
#include "analysis/rules/rules.h"

namespace telens::analysis {
namespace {

constexpr double kMaxOffsetFromKind = 2.5;        // bits from the median of the kind
constexpr double kMaxOffsetFromAll = 4;           // bits from the median of all weights
constexpr std::size_t kMinLayersOfKind = 3;       // fewer are compared with all weights
constexpr std::int64_t kMaxInitialIteration = 2;  // iterations; later weights have been trained

// Minimum share of zeros in an initial weight. If other weights of its kind exist, one shard of 64
// is enough. A single weight may contain zeros on purpose, such as a padded vocabulary.
constexpr double kMinZeros = 1.0 / 64;
constexpr double kMinZerosOfSingle = 1.0 / 4;
constexpr double kTimesUsualZeros = 8;
// A block of zeros removes its share of the sum of squares. Pruning by size removes very little:
// the smaller half of a normal distribution holds 7 % of the sum.
constexpr double kMinLoss = 0.5;  // share of the bits that a block of zeros removes
// Bits; if the sizes of a kind vary more, the loss is not visible.
constexpr double kMaxSpread = 0.1;

// An unfilled shard leaves k/n of the weight as zeros. Random zeros have no small denominator n.
constexpr std::int64_t kMaxRanks = 64;
constexpr double kMaxKeptZeros = 0.5;  // share of the initial zeros that may remain after training
constexpr std::size_t kMinInputs = 3;  // iterations in which the next layer's input is compared

struct InitialWeight {
  Place place;
  Point size;                        // root mean square
  std::optional<double> zeros = {};  // share of the elements
  // False for gains, which start near 1, and embeddings, which start with up to 1: neither is
  // comparable to the weights of linear layers.
  bool is_linear = true;
};

// Returns false for norms and for layers without recorded inputs: an embedding is indexed by
// integers, which have no statistics. Returns true for all other layers if no inputs were recorded
// at all.
bool is_linear(const Facts& facts, const Place& weight) {
  if (is_norm(facts.layer_name(weight.layer))) return false;
  const auto has_input = [&](const Place& place) {
    Place input = place;
    input.tensor = TensorName::activation;
    return facts.find(input, "l2_norm") != nullptr || facts.find(input, "std") != nullptr;
  };
  const auto is_activation = [&](const Series* series) {
    return series->place.tensor == TensorName::activation;
  };
  const bool inputs_were_recorded = std::ranges::any_of(facts.with("l2_norm"), is_activation) ||
                                    std::ranges::any_of(facts.with("std"), is_activation);
  return !inputs_were_recorded || has_input(weight);
}

std::optional<double> get_zero_share(const Facts& facts, const Place& place,
                                     std::int64_t iteration) {
  const Series* zeros = facts.find(place, "zeros");
  const Series* count = facts.find(place, "numel");
  const auto number = zeros != nullptr ? zeros->at(iteration) : std::nullopt;
  const auto elements = count != nullptr ? count->at(iteration) : std::nullopt;
  if (!number || !elements || !(*elements > 0)) return std::nullopt;
  return *number / *elements;
}

bool is_constant(const Facts& facts, const InitialWeight& first) {
  const Series* deviation = facts.find(first.place, "std");
  return first.size.value > 0 && deviation != nullptr && deviation->at(first.size.iteration) == 0;
}

std::vector<InitialWeight> list_initial_weights(const Facts& facts) {
  std::vector<InitialWeight> firsts;
  for (const Series& series : root_mean_squares(facts, TensorName::weight)) {
    if (series.points.empty()) continue;
    const Point& first = series.points.front();
    if (first.iteration > facts.first_iteration() + kMaxInitialIteration) continue;
    if (!std::isfinite(first.value)) continue;  // reported by nonfinite
    InitialWeight found{series.place, first, get_zero_share(facts, series.place, first.iteration)};
    found.is_linear = is_linear(facts, series.place);
    // The gain of a norm starts at 1 and is not comparable to the weights of linear layers.
    if (is_constant(facts, found) && first.value == 1) continue;
    firsts.push_back(found);
  }
  return firsts;
}

// Returns the median size of the nonzero weights in bits. Returns NaN if there are too few weights
// or if half of them are zero.
double median_size(const std::vector<const InitialWeight*>& firsts) {
  std::vector<double> sizes;
  for (const InitialWeight* each : firsts) {
    if (each->size.value > 0) sizes.push_back(bits(each->size.value));
  }
  const bool few = firsts.size() < kMinLayersOfKind || 2 * sizes.size() <= firsts.size();
  return few ? std::nan("") : median(std::move(sizes));
}

struct OtherWeights {
  std::size_t layers = 0;
  double zeros = 0;   // median
  double size = 0;    // median of the weights with few zeros, in bits
  double spread = 0;  // of these sizes
};

using WeightList = std::vector<const InitialWeight*>;

// Summarizes the weights in `firsts` other than `each` whose zeros are known.
OtherWeights summarize_others(const WeightList& firsts, const InitialWeight& each) {
  std::vector<double> zeros, sizes;
  std::set<std::int32_t> layers;
  for (const InitialWeight* other : firsts) {
    if (!other->zeros || other->place == each.place) continue;
    if (other->place.layer != each.place.layer) layers.insert(other->place.layer);
    zeros.push_back(*other->zeros);
    if (*other->zeros < kMinZeros && other->size.value > 0) {
      sizes.push_back(bits(other->size.value));
    }
  }
  OtherWeights others{.layers = layers.size()};
  if (zeros.empty()) return others;
  others.zeros = median(std::move(zeros));
  others.size = median(sizes);
  others.spread = sizes.empty() ? 0 : spread(sizes);
  return others;
}

// Returns true if at least half of the layers have zeros in the shards of their highest ranks only,
// like a vocabulary that was padded to a multiple of the ranks.
bool is_like_padding(const WeightList& firsts) {
  struct Ranks {
    int highest_full = -1;
    int lowest_zeros = INT_MAX;
  };
  std::map<std::int32_t, Ranks> layers;
  for (const InitialWeight* each : firsts) {
    if (!each->zeros) continue;
    Ranks& ranks = layers[each->place.layer];
    if (*each->zeros < kMinZeros) {
      ranks.highest_full = std::max(ranks.highest_full, each->place.rank);
    } else {
      ranks.lowest_zeros = std::min(ranks.lowest_zeros, each->place.rank);
    }
  }
  const auto padded = std::ranges::count_if(layers, [](const auto& entry) {
    const Ranks& ranks = entry.second;
    return ranks.highest_full >= 0 && ranks.lowest_zeros < INT_MAX &&
           ranks.highest_full < ranks.lowest_zeros;
  });
  return padded > 0 && 2 * static_cast<std::size_t>(padded) >= layers.size();
}

// All initial weights, grouped by kind and by part. The elements of an nn.Sequential have one kind
// even if an embedding is among linear layers, so each group contains either linear layers or
// others.
struct Weights {
  using Group = std::pair<std::string, bool>;  // name of the kind or part; is_linear

  explicit Weights(const Facts& facts) : all(list_initial_weights(facts)) {
    std::map<Group, WeightList> parts;  // by Facts::select_part
    for (const InitialWeight& each : all) {
      pointers.push_back(&each);
      kinds[{facts.get_kind(each.place.layer), each.is_linear}].push_back(&each);
      parts[{facts.select_part(each.place.layer), each.is_linear}].push_back(&each);
    }
    WeightList linear;
    for (const InitialWeight* each : pointers) {
      if (each->is_linear) linear.push_back(each);
    }
    usual = median_size(linear);
    for (const auto& [part, firsts] : parts) {
      const double size = median_size(firsts);
      for (const InitialWeight* each : firsts) usual_of_part[each] = size;
    }
    for (const auto& [kind, firsts] : kinds) {
      for (const InitialWeight* each : firsts) of_kind[each] = &firsts;
    }
  }

  std::vector<InitialWeight> all;
  WeightList pointers;
  std::map<Group, WeightList> kinds;  // by Facts::get_kind
  std::unordered_map<const InitialWeight*, const WeightList*> of_kind;
  double usual = 0;                                                // median_size() of linear layers
  std::unordered_map<const InitialWeight*, double> usual_of_part;  // median_size() of the part
};

// Returns nullopt if the weight has no more zeros than others, or if it was pruned to its large
// elements.
std::optional<Finding> judge_zeros(const Facts& facts, const Weights& weights,
                                   const InitialWeight& each) {
  if (!each.zeros || *each.zeros < kMinZeros || *each.zeros >= 1) return std::nullopt;
  const WeightList& kind = *weights.of_kind.at(&each);
  OtherWeights others = summarize_others(kind, each);
  const bool is_single = others.layers + 1 < kMinLayersOfKind;
  if (is_single && *each.zeros < kMinZerosOfSingle) return std::nullopt;
  if (is_single) others = summarize_others(weights.pointers, each);
  if (others.layers + 1 < kMinLayersOfKind) return std::nullopt;
  if (*each.zeros < kTimesUsualZeros * others.zeros) return std::nullopt;
  const double loss = -std::log2(1 - *each.zeros) / 2;  // of a block, in bits of the size
  const bool shows_loss =
      !is_single && !is_like_padding(kind) && others.spread < std::min(kMaxSpread, loss / 2);
  if (shows_loss && others.size - bits(each.size.value) < kMinLoss * loss) return std::nullopt;
  return Finding{
      .cause = "weight_initialization",
      .place = each.place,
      .first = each.size.iteration,
      .last = facts.last_iteration(),
      .confidence = shows_loss ? kProbable : kPossible,
      .summary =
          fmt::format("{:.3g} % of the elements of the weight start as exactly 0 ({}: {:.2g} %): "
                      "part of the weight was not filled, for example the shard of another rank",
                      100 * *each.zeros, is_single ? "other weights" : "weights of its kind",
                      100 * others.zeros),
      .evidence = {{"zeros / numel", each.place, each.size.iteration, *each.zeros, ""},
                   {"zeros / numel", {}, each.size.iteration, others.zeros, "usual"},
                   {"root mean square", each.place, each.size.iteration, each.size.value, ""},
                   {"root mean square", {}, each.size.iteration, std::exp2(others.size), "usual"}},
      .next_step =
          "telens stats RUN --layer '{layer}' --tensor weight --stat zeros; check the code that "
          "fills this weight: reset_parameters() or the checkpoint, on every rank and for every "
          "shard (FSDP: sync_module_states, or initialize after to_empty())"};
}

// Compares the size of the weight with others of its part, or with all if they are few. Returns
// nullopt if it is similar. Residual branches and adapters start at zero in all layers of a kind.
std::optional<Finding> judge_size(const Facts& facts, const Weights& weights,
                                  const InitialWeight& each) {
  const double size = bits(each.size.value);
  const double of_kind = weights.usual_of_part.at(&each);
  const double of_all = weights.usual;
  const bool is_single = std::isnan(of_kind);
  const bool off = is_single ? each.is_linear && each.size.value > 0 &&
                                   std::abs(size - of_all) > kMaxOffsetFromAll
                             : std::abs(size - of_kind) > kMaxOffsetFromKind;
  const bool constant = is_constant(facts, each);
  if (!off && !constant) return std::nullopt;
  const double usual = std::exp2(is_single ? of_all : of_kind);
  return Finding{
      .cause = "weight_initialization",
      .place = each.place,
      .first = each.size.iteration,
      .last = facts.last_iteration(),
      .confidence = constant ? kProven : kProbable,
      .summary = constant
                     ? fmt::format("all elements of the weight start as {:.3g}", each.size.value)
                     : fmt::format("the weight starts with a root mean square of {:.3g}, while {} "
                                   "start with {:.3g}",
                                   each.size.value,
                                   is_single ? "other weights" : "weights of its kind", usual),
      .evidence = {{"root mean square", each.place, each.size.iteration, each.size.value, ""},
                   {"root mean square", {}, each.size.iteration, usual, "usual"}}};
}

// Returns the share of zeros if it is k/n for small n and equal in all of these weights; 0 if not.
double get_shared_zeros(const Facts& facts, const WeightList& firsts) {
  std::set<std::int32_t> layers;
  std::optional<double> share;
  for (const InitialWeight* each : firsts) {
    const Series* count = facts.find(each->place, "numel");
    const auto elements = count != nullptr ? count->at(each->size.iteration) : std::nullopt;
    if (!each->zeros || !elements || *each->zeros != share.value_or(*each->zeros)) return 0;
    share = each->zeros;
    const auto whole = static_cast<std::int64_t>(*elements);
    const std::int64_t zeros = std::llround(*each->zeros * *elements);
    if (whole <= 0 || whole / std::gcd(zeros, whole) > kMaxRanks) return 0;
    layers.insert(each->place.layer);
  }
  const bool is_part = share && *share >= kMinZeros && *share < 1;
  return is_part && layers.size() >= kMinLayersOfKind ? *share : 0;
}

// Returns true if at least half of the zeros are nonzero in the last record. A mask keeps them.
bool is_trained_away(const Facts& facts, const InitialWeight& first) {
  const Series* zeros = facts.find(first.place, "zeros");
  if (zeros == nullptr || zeros->points.back().iteration <= first.size.iteration) return false;
  const auto last = get_zero_share(facts, first.place, zeros->points.back().iteration);
  return last && *last <= kMaxKeptZeros * *first.zeros;
}

// Returns true if exactly this share of the next layer's input is zero in the first iterations: the
// zeros are whole rows of the weight, whose outputs the activation function keeps at zero.
bool has_zeros_in_next_input(const Facts& facts, const InitialWeight& first) {
  Place place = first.place;
  ++place.layer;
  place.tensor = TensorName::activation;
  const Series* zeros = facts.find(place, "zeros");
  if (zeros == nullptr || zeros->points.size() < kMinInputs) return false;
  return std::ranges::all_of(std::span(zeros->points).first(kMinInputs), [&](const Point& point) {
    return get_zero_share(facts, place, point.iteration) == first.zeros;
  });
}

// Weights with the same share of zeros as all other weights of their kind, or as all other weights:
// the shard of a rank may not have been filled.
struct SharedZeros {
  double min_share = 1, max_share = 0;                    // shares of zeros, over the kinds
  std::set<const InitialWeight*> trained, in_next_input;  // weights whose zeros are not a mask
};

void add_shared_zeros(const Facts& facts, const WeightList& firsts, SharedZeros& found) {
  const double share = get_shared_zeros(facts, firsts);
  if (share == 0) return;
  const auto all = [&](const auto& shows) {
    return std::ranges::all_of(firsts,
                               [&](const InitialWeight* each) { return shows(facts, *each); });
  };
  std::set<const InitialWeight*>* shown = all(is_trained_away)           ? &found.trained
                                          : all(has_zeros_in_next_input) ? &found.in_next_input
                                                                         : nullptr;
  if (shown == nullptr) return;
  found.min_share = std::min(found.min_share, share);
  found.max_share = std::max(found.max_share, share);
  shown->insert(firsts.begin(), firsts.end());
}

std::optional<Finding> judge_shared_zeros(const Facts& facts, const Weights& weights) {
  SharedZeros found;
  add_shared_zeros(facts, weights.pointers, found);
  for (const auto& [kind, firsts] : weights.kinds) add_shared_zeros(facts, firsts, found);
  std::set<const InitialWeight*> all = found.trained;
  all.insert(found.in_next_input.begin(), found.in_next_input.end());
  const auto first = std::ranges::find_if(
      weights.pointers, [&](const InitialWeight* each) { return all.contains(each); });
  if (first == weights.pointers.end()) return std::nullopt;
  const InitialWeight& origin = **first;
  return Finding{
      .cause = "weight_initialization",
      .place = origin.place,
      .first = origin.size.iteration,
      .last = facts.last_iteration(),
      .confidence = kPossible,
      .summary = fmt::format(
          "{}{:.3g} % of the elements of {} weights start as exactly 0, with the same share in all "
          "weights of a kind, {}: the shard of a rank may not have been filled",
          found.min_share < found.max_share ? "up to " : "", 100 * found.max_share, all.size(),
          found.trained.empty() ? "and the same share of the next layer's input is 0"
                                : "and training changes them"),
      .evidence = {{"zeros / numel", origin.place, origin.size.iteration, *origin.zeros, ""}},
      .next_step =
          "telens stats RUN --tensor weight --stat zeros; check the code that fills the weights on "
          "every rank: reset_parameters() after to_empty(), or the checkpoint (FSDP: "
          "sync_module_states)"};
}

// Reports a kind of layers if each of its weights is more than 16 times larger than the median
// weight of every other kind.
std::optional<Finding> judge_kinds(const Facts& facts, const Weights& weights) {
  struct Kind {
    const WeightList* firsts = nullptr;
    double smallest = 0, median = 0;  // bits
  };
  std::vector<Kind> kinds;
  for (const auto& [name, firsts] : weights.kinds) {
    if (!firsts.front()->is_linear) continue;
    std::vector<double> sizes;
    for (const InitialWeight* each : firsts) {
      if (each->size.value > 0) sizes.push_back(bits(each->size.value));
    }
    if (sizes.empty()) continue;
    const double smallest = *std::ranges::min_element(sizes);
    kinds.push_back({&firsts, smallest, median(std::move(sizes))});
  }
  constexpr std::size_t kMinKinds = 4;
  if (kinds.size() < kMinKinds) return std::nullopt;
  for (const Kind& kind : kinds) {
    if (kind.firsts->size() < kMinLayersOfKind) continue;
    const bool is_largest = std::ranges::all_of(kinds, [&](const Kind& other) {
      return &other == &kind || kind.smallest - other.median > kMaxOffsetFromAll;
    });
    if (!is_largest) continue;
    const InitialWeight& first = *kind.firsts->front();
    const double usual = std::exp2(weights.usual);
    return Finding{
        .cause = "weight_initialization",
        .place = first.place,
        .first = first.size.iteration,
        .last = facts.last_iteration(),
        .confidence = kProbable,
        .summary = fmt::format(
            "the weight starts with a root mean square of {:.3g}, like the other {} weights of its "
            "kind; all other kinds of layers start with at most 1/16 of it",
            first.size.value, kind.firsts->size() - 1),
        .evidence = {{"root mean square", first.place, first.size.iteration, first.size.value, ""},
                     {"root mean square", {}, first.size.iteration, usual, "usual"}}};
  }
  return std::nullopt;
}

// Returns the ratio of the sizes of a linear layer's first output and input, which is about the
// root mean square of the weight times the square root of its fan-in. nullopt if it was not
// recorded.
std::optional<double> get_first_gain(const Facts& facts, const InitialWeight& weight) {
  Place input = weight.place;
  Place output = weight.place;
  input.tensor = TensorName::activation;
  output.tensor = TensorName::output;
  const auto before = root_mean_square(facts, input, weight.size.iteration);
  const auto after = root_mean_square(facts, output, weight.size.iteration);
  if (!before || !after || !(*before > 0) || !std::isfinite(*after)) return std::nullopt;
  return *after / *before;
}

// Reports weights that begin too small in nearly all linear layers of all blocks, which their peers
// cannot show: their outputs are below a thirtieth of their inputs. Usual initializations give 0.1
// or more: 0.02 with a fan-in of 32 gives 0.11, and 1 / sqrt(3 fan-in), torch's default, gives
// 0.58.
std::optional<Finding> judge_gains(const Facts& facts, const Weights& weights) {
  constexpr double kMaxGain = 1.0 / 30;
  constexpr double kMinShare = 0.75;
  constexpr std::size_t kMinLayers = 8;
  WeightList small;
  std::size_t nonzero = 0;
  std::vector<double> gains;
  for (const InitialWeight* each : weights.pointers) {
    if (!each->is_linear || weights.of_kind.at(each)->size() < 2 || !(each->size.value > 0))
      continue;
    const auto gain = get_first_gain(facts, *each);
    if (!gain || *gain == 0) continue;
    ++nonzero;
    // A fan-in of 1 or more: larger weights do not explain the gain.
    if (*gain >= kMaxGain || each->size.value >= kMaxGain) continue;
    small.push_back(each);
    gains.push_back(*gain);
  }
  if (nonzero < kMinLayers ||
      static_cast<double>(small.size()) < kMinShare * static_cast<double>(nonzero)) {
    return std::nullopt;
  }
  const InitialWeight& first = *small.front();
  const double first_gain = gains.front();
  const double usual = median(std::move(gains));
  return Finding{
      .cause = "weight_initialization",
      .place = first.place,
      .first = first.size.iteration,
      .last = facts.last_iteration(),
      .confidence = kProbable,
      .summary = fmt::format(
          "the weights of {} of {} linear layers in the blocks start too small: the outputs are "
          "{:.2g} times as large as the inputs, so the blocks contribute nothing",
          small.size(), nonzero, usual),
      .evidence = {{"root mean square", first.place, first.size.iteration, first.size.value, ""},
                   {"output / input", first.place, first.size.iteration, first_gain, ""}},
      .next_step =
          "compare std(weight) * sqrt(fan-in) with the model's definition, 0.1 to 1 in most "
          "models; check the conversion of the checkpoint and its scales"};
}

std::vector<Finding> find_weight_initialization(const Facts& facts) {
  std::vector<Finding> found = find_wrong_gains(facts);
  const Weights weights(facts);
  if (auto finding = judge_shared_zeros(facts, weights)) found.push_back(std::move(*finding));
  if (auto kind = judge_kinds(facts, weights)) found.push_back(std::move(*kind));
  if (auto gains = judge_gains(facts, weights)) found.push_back(std::move(*gains));
  for (const InitialWeight& each : weights.all) {
    const bool is_known =
        std::ranges::any_of(found, [&](const Finding& known) { return known.place == each.place; });
    if (is_known) continue;
    auto finding = judge_size(facts, weights, each);
    if (!finding) finding = judge_zeros(facts, weights, each);
    if (finding) found.push_back(std::move(*finding));
  }
  return found;
}

}  // namespace

Rule weight_initialization() {
  return {
      .cause = "weight_initialization",
      .title = "weight initialized differently from its siblings",
      .doc =
          "In the first iterations, the root mean square of a weight differs by a factor of 6 from "
          "the corresponding layers of other blocks (at least 3), or by a factor of 16 from the "
          "median of all weights if fewer layers correspond. Also reported: a weight whose "
          "elements are all equal (except a gain of 1), a kind of layers whose weights are all 16 "
          "times larger than every other kind's median, outputs below a thirtieth of their inputs "
          "in three quarters of the linear layers, and a norm whose gains start around the wrong "
          "value. All-zero weights are reported only if corresponding layers are nonzero, because "
          "residual branches and adapters start at zero. A weight with at least 1/64 zeros (1/4 if "
          "fewer than 3 layers correspond) is reported if this is 8 times the usual share. If its "
          "kind has similar sizes, its root mean square must also be smaller by half of the zeros' "
          "share, which excludes pruning: it keeps the large elements. If all weights of at least "
          "3 layers start with the same share k/n of zeros (n up to 64), they are reported with "
          "lower confidence if training changes at least half of the zeros in each, which a mask "
          "prevents, or if exactly this share of the next layer's input is zero in its first 3 "
          "records.",
      .stage = Stage::setup,
      .required = {kSizes},
      .optional = {"numel", "mean", "zeros", "std"},
      .recorded_by =
          "LogTensorStats of weights (l2_norm and numel, or std and mean), from the first "
          "iteration on",
      .alternatives =
          "A layer with a different initialization on purpose; padding rows; a pruning mask; a "
          "part of a fused weight that starts at zero on purpose, such as the queries of qkv.",
      .next_step =
          "telens stats RUN --layer '{layer}' --tensor weight --stat std; check for "
          "reset_parameters() after to_empty(), and for keys that a checkpoint does not contain",
      .find = find_weight_initialization};
}

}  // namespace telens::analysis
