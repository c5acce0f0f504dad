#include "analysis/exact_difference.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <map>
#include <set>
#include <string_view>
#include <tuple>

namespace telens::analysis {
namespace {

constexpr std::string_view kDigest = "digest";

// "digest" -> 0, "digest.3" -> 3; nullopt for other statistics.
std::optional<int> micro_batch_of(std::string_view statistic) {
  if (statistic == kDigest) return 0;
  if (!statistic.starts_with(kDigest) || statistic.size() <= kDigest.size() + 1 ||
      statistic[kDigest.size()] != '.') {
    return std::nullopt;
  }
  const std::string_view number = statistic.substr(kDigest.size() + 1);
  int value = 0;
  const auto [end, error] = std::from_chars(number.data(), number.data() + number.size(), value);
  if (error != std::errc() || end != number.data() + number.size()) return std::nullopt;
  return value;
}

// A tensor in one call of a layer. Sorted in training order; the rank is compared last, because
// ranks run at the same time.
struct Key {
  std::int64_t iteration = 0;
  int micro_batch = 0;
  StepOrder order = {};
  int rank = 0;

  friend auto operator<=>(const Key&, const Key&) = default;
};

struct Digest {
  Place place;
  double value = 0;
};

using Digests = std::map<Key, Digest>;

Digests list_digests(const Facts& facts) {
  Digests digests;
  for (int micro_batch = 0;; ++micro_batch) {
    const std::string name =
        micro_batch == 0 ? std::string(kDigest) : fmt::format("{}.{}", kDigest, micro_batch);
    const auto all = facts.with(name);
    if (all.empty()) break;
    for (const Series* series : all) {
      for (const auto& [iteration, value] : series->points) {
        digests.emplace(
            Key{iteration, micro_batch, get_order_in_step(series->place), series->place.rank},
            Digest{series->place, value});
      }
    }
  }
  return digests;
}

// The digests of B, with keys that do not contain layer ids.
using ByName = std::map<std::tuple<std::int64_t, int, int, std::string, TensorName>, double>;

ByName by_name(const Facts& facts, const Digests& digests) {
  ByName named;
  for (const auto& [key, digest] : digests) {
    named.emplace(std::tuple(key.iteration, key.micro_batch, key.rank,
                             facts.layer_name(digest.place.layer), *digest.place.tensor),
                  digest.value);
  }
  return named;
}

// Compares digests of both runs.
class Comparison {
 public:
  Comparison(const Facts& a, const Facts& b, const LayerMap& map)
      : a_(a), map_(map), digests_(list_digests(a)), of_b_(by_name(b, list_digests(b))) {}

  ExactDifference run() {
    ExactDifference result;
    std::optional<Key> first;
    std::set<const ByName::value_type*> used;
    for (const auto& [key, digest] : digests_) {
      const ByName::value_type* other = find_in_b(key, digest.place);
      if (other == nullptr) {
        ++result.only_in_one;
        continue;
      }
      ++result.compared;
      used.insert(other);
      if (!first_compared_) first_compared_ = key.iteration;
      if (!first && key.iteration != last_compared_) {
        before_last_compared_ = std::exchange(last_compared_, key.iteration);
      }
      if (other->second == digest.value) continue;
      ++result.different;
      if (!first) first = key;
      const bool is_at_first = std::tie(key.iteration, key.micro_batch, key.order) ==
                               std::tie(first->iteration, first->micro_batch, first->order);
      if (is_at_first) ++result.ranks;
    }
    result.only_in_one += of_b_.size() - used.size();
    if (first) explain(*first, result);
    return result;
  }

 private:
  const ByName::value_type* find_in_b(const Key& key, const Place& place) const {
    const auto found = of_b_.find({key.iteration, key.micro_batch, key.rank,
                                   map_layer(a_.layer_name(place.layer), map_), *place.tensor});
    return found == of_b_.end() ? nullptr : &*found;
  }

  std::string label(const Place& place) const {
    return fmt::format("{} {}", a_.layer_name(place.layer), get_name(*place.tensor));
  }

  // Returns true if both runs recorded this tensor of the layer in the same call, with equal bits.
  bool is_equal(const Key& key, Place place, TensorName tensor) const {
    place.tensor = tensor;
    // The weight is read in the first micro-batch only.
    const int micro_batch = tensor == TensorName::weight ? 0 : key.micro_batch;
    const Key at{key.iteration, micro_batch, get_order_in_step(place), key.rank};
    const auto found = digests_.find(at);
    if (found == digests_.end()) return false;
    const ByName::value_type* other = find_in_b(at, place);
    return other != nullptr && other->second == found->second.value;
  }

  void add_inputs(const Key& key, const Place& place, std::initializer_list<TensorName> tensors,
                  ExactDifference& result) const {
    for (const TensorName tensor : tensors) {
      if (is_equal(key, place, tensor)) {
        Place input = place;
        input.tensor = tensor;
        result.equal_inputs.push_back(label(input));
      }
    }
  }

  // Returns the tensor before this one in the same rank, iteration and micro-batch.
  const Digest* before(const Key& key) const {
    for (auto at = digests_.find(key); at != digests_.begin();) {
      --at;
      if (at->first.iteration != key.iteration || at->first.micro_batch != key.micro_batch) break;
      if (at->first.rank == key.rank) return &at->second;
    }
    return nullptr;
  }

  void explain(const Key& key, ExactDifference& result) const {
    const Place& place = digests_.at(key).place;
    result.first = ExactPlace{.iteration = key.iteration,
                              .micro_batch = key.micro_batch,
                              .rank = key.rank,
                              .layer = a_.layer_name(place.layer),
                              .tensor = *place.tensor};
    const Digest* last = before(key);
    const bool is_backward = std::get<0>(key.order) == 1;
    const bool last_is_backward =
        last != nullptr && std::get<0>(get_order_in_step(last->place)) == 1;
    if (last != nullptr) result.before = label(last->place);
    switch (*place.tensor) {
      case TensorName::weight:
        result.culprit =
            key.iteration == first_compared_ ? Culprit::initialization : Culprit::optimizer;
        result.iteration_before = before_last_compared_;
        return;
      case TensorName::output:
        add_inputs(key, place, {TensorName::activation, TensorName::weight}, result);
        if (!result.equal_inputs.empty()) result.culprit = Culprit::forward;
        return;
      case TensorName::dgrad:
        add_inputs(key, place, {TensorName::gradient, TensorName::weight}, result);
        if (!result.equal_inputs.empty()) result.culprit = Culprit::backward;
        return;
      case TensorName::wgrad:
        add_inputs(key, place, {TensorName::gradient, TensorName::activation}, result);
        if (!result.equal_inputs.empty()) result.culprit = Culprit::backward;
        return;
      default:
        break;
    }
    if (is_backward && last != nullptr && !last_is_backward) result.culprit = Culprit::loss;
    const bool is_first_input = !is_backward && is_first_layer(key) && has_weights(key);
    if (is_first_input) result.culprit = Culprit::data;
  }

  // Returns true if weights of this rank and iteration were compared.
  bool has_weights(const Key& key) const {
    return std::ranges::any_of(digests_, [&](const auto& entry) {
      const auto& [at, digest] = entry;
      return at.iteration == key.iteration && at.rank == key.rank &&
             digest.place.tensor == TensorName::weight && find_in_b(at, digest.place) != nullptr;
    });
  }

  // Returns true if only weights come before this tensor in the micro-batch.
  bool is_first_layer(const Key& key) const {
    for (auto at = digests_.find(key); at != digests_.begin();) {
      --at;
      if (at->first.iteration != key.iteration || at->first.micro_batch != key.micro_batch) break;
      if (at->first.rank == key.rank && at->second.place.tensor != TensorName::weight) return false;
    }
    return true;
  }

  const Facts& a_;
  const LayerMap& map_;
  Digests digests_;
  ByName of_b_;
  // Iterations that have digests in both runs: the first one, and the last two up to the first
  // difference.
  std::optional<std::int64_t> first_compared_, last_compared_, before_last_compared_;
};

}  // namespace

Facts read_digests(const record::RunReader& run) {
  std::vector<std::string_view> statistics;
  for (const std::string& name : run.names(record::Dictionary::statistic)) {
    if (micro_batch_of(name)) statistics.push_back(name);
  }
  return {run, statistics};
}

ExactDifference find_exact_difference(const Facts& a, const Facts& b, const LayerMap& map) {
  return Comparison(a, b, map).run();
}

}  // namespace telens::analysis
