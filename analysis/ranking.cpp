#include "analysis/ranking.h"

#include <algorithm>
#include <cstdlib>
#include <string_view>
#include <tuple>
#include <utility>

#include "analysis/rules.h"

namespace telens::analysis {
namespace {

constexpr double kTrusted = 0.6;
// Iterations that a scale or the setup may show later than its first consequence: a history is seen
// not to move only after the tensor has outgrown its scale.
constexpr std::int64_t kShownLater = 2;
// Clipping and growth may by chance begin one iteration earlier.
constexpr std::int64_t kByChance = 1;
// Consequences begin while their cause lasts, or so many iterations after it.
constexpr std::int64_t kAftermath = 20;

Stage get_stage(const Finding& finding) { return find_rule(finding.cause).stage; }

// When it can have begun.
std::int64_t earliest(const Finding& finding) {
  const Stage stage = get_stage(finding);
  if (stage <= Stage::scale) return finding.first - kShownLater;
  if (stage == Stage::propagation && finding.gradual) return finding.first + 2 * kByChance;
  return finding.first + (stage == Stage::cast || finding.gradual ? kByChance : 0);
}

bool before(const Finding& a, const Finding& b) {
  const auto key = [](const Finding& f) {
    return std::tuple(f.confidence < kTrusted, earliest(f), get_stage(f),
                      get_order_in_step(f.place), f.place.rank, f.cause);
  };
  return key(a) < key(b);
}

bool is_same_elsewhere(const Finding& origin, const Finding& other) {
  return origin.cause == other.cause && std::abs(origin.first - other.first) <= kShownLater;
}

// A wrong setup affects its own layer; a wrong weight or history also shows in other layers.
bool follows_from_setup(const Finding& origin, const Finding& other) {
  if (get_stage(other) == Stage::setup) return false;
  if (other.place.layer == origin.place.layer) return true;
  const bool precision = find_rule(origin.cause).needs_ledger;
  return !precision && other.first <= origin.first + kShownLater;
}

// Another interpretation of the origin: the same tensor since the same iteration. The evidence
// shows the reader which one applies.
bool is_other_reading(const Finding& origin, const Finding& other) {
  return origin.place.layer == other.place.layer && origin.place.tensor == other.place.tensor &&
         origin.cause != other.cause && std::abs(origin.first - other.first) <= kByChance &&
         get_stage(other) <= Stage::values;
}

constexpr std::string_view kDeadGain = "dead_gain";

// An input that a dead gain makes nothing of has collapsed, too: one thing under two names.
bool is_same_by_another_name(const Finding& origin, const Finding& other) {
  const auto is_collapse = [](const Finding& finding) {
    return finding.cause == kDeadGain || finding.cause == "collapsed_activation";
  };
  return is_collapse(origin) && is_collapse(other) && origin.place.layer == other.place.layer &&
         origin.place.tensor == other.place.tensor &&
         std::abs(origin.first - other.first) <= kByChance;
}

// The rule of the other finding lists this cause as an origin, even if both are about one tensor.
bool is_known_origin(const Finding& origin, const Finding& other) {
  const auto& causes = find_rule(other.cause).follows_causes;
  return std::ranges::find(causes, origin.cause) != causes.end();
}

bool may_follow(const Finding& origin, const Finding& other) {
  if (is_same_elsewhere(origin, other) || is_same_by_another_name(origin, other)) return true;
  if (is_known_origin(origin, other)) return earliest(other) >= earliest(origin);
  if (is_other_reading(origin, other)) return false;
  if (earliest(other) < earliest(origin) || other.first > origin.last + kAftermath) return false;
  if (get_stage(origin) == Stage::setup) return follows_from_setup(origin, other);
  // The loss in a cast changes no setup, no scale and hardly an optimizer's step.
  const Stage stage = get_stage(other);
  if (stage == Stage::setup || (stage <= Stage::update && stage < get_stage(origin))) return false;
  if (earliest(other) > origin.first || get_stage(other) > get_stage(origin)) return true;
  return get_stage(other) == get_stage(origin) &&
         get_order_in_step(other.place) >= get_order_in_step(origin.place);
}

// Weights that part in the iteration of the gradient that was not reduced: the optimizer steps
// before weights are compared, although they come first in the order of a step.
void put_known_origins_first(std::vector<Finding>& findings) {
  for (auto later = findings.begin(); later != findings.end(); ++later) {
    const auto first = std::find_if(findings.begin(), later, [&](const Finding& known) {
      return known.confidence >= kTrusted && earliest(known) == earliest(*later) &&
             is_known_origin(*later, known);
    });
    if (later->confidence >= kTrusted) std::rotate(first, later, std::next(later));
  }
}

}  // namespace

std::vector<Ranked> rank(std::vector<Finding> findings) {
  std::ranges::stable_sort(findings, before);
  put_known_origins_first(findings);
  std::vector<Ranked> ranked;
  for (Finding& finding : findings) {
    const auto origin = std::ranges::find_if(ranked, [&](const Ranked& known) {
      return known.finding.confidence >= kTrusted && may_follow(known.finding, finding);
    });
    if (origin == ranked.end()) {
      ranked.push_back({std::move(finding), {}});
    } else {
      // The gain can be fixed; the collapsed tensor is only its symptom.
      const bool is_the_cause =
          finding.cause == kDeadGain && is_same_by_another_name(origin->finding, finding);
      if (is_the_cause) std::swap(origin->finding, finding);
      origin->consequences.push_back(std::move(finding));
    }
  }
  return ranked;
}

}  // namespace telens::analysis
