#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <vector>

#include "analysis/baseline.h"
#include "analysis/rules/rules.h"

namespace telens::analysis {
namespace {

// Logits of a healthy attention are at most a few tens. Above about 100, a single key wins among
// any number of distinct keys, and the gradient of the softmax is only rounding error.
constexpr double kMinExplodingLogit = 30;
// Smaller logits are raised to this value, so that normal learning at small logits is not a shift.
constexpr double kLogitFloor = 10;
constexpr ShiftOptions kLogitJump{.least_bits = 1.5};
constexpr RampOptions kLogitGrowth{.least_bits = 3, .within = 32};

std::vector<Series> largest_logits(const Facts& facts) {
  std::vector<Series> all;
  for (const Series* series : facts.with("max")) {
    if (series->place.tensor != TensorName::scores) continue;
    for (Point& point : all.emplace_back(*series).points) {
      point.value = std::max(point.value, kLogitFloor);
    }
  }
  return all;
}

Finding attention_logits_finding(const Facts& facts, const Place& place, const Shift& shift,
                                 std::size_t others) {
  const Point* before = facts.find(place, "max")->before(shift.first);
  Finding finding{
      .cause = "attention_logits",
      .place = place,
      .first = shift.first,
      .last = shift.last,
      .confidence = kProbable,
      .summary = fmt::format("the largest logit rises from {:.3g} to {:.3g}{}", before->value,
                             shift.value, and_others(others, "attention layer")),
      .evidence = {{"max", place, shift.first, shift.value, ""},
                   {"max", place, before->iteration, before->value, "before"}}};
  const Series* one_key = facts.find(place, "one_key%");
  const auto share = one_key != nullptr ? one_key->at(shift.first) : std::nullopt;
  if (share) finding.evidence.push_back({"one_key%", place, shift.first, *share, ""});
  return finding;
}

std::vector<Finding> find_attention_logits(const Facts& facts) {
  const std::vector<Series> logits = largest_logits(facts);
  std::vector<Finding> found;
  for (const auto& group : shifts_together(logits, 1, kLogitJump)) {
    const PlaceShift& origin = group.front();
    if (origin.shift.value < kMinExplodingLogit) continue;
    found.push_back(attention_logits_finding(facts, origin.place, origin.shift, group.size() - 1));
  }
  if (!found.empty()) return found;
  for (const Series& series : logits) {
    const auto ramp = first_ramp(series.points, 1, kLogitGrowth);
    if (!ramp || ramp->value < kMinExplodingLogit) continue;
    if (found.empty() || ramp->first < found.front().first) {
      found = {attention_logits_finding(facts, series.place, *ramp, 0)};
    }
  }
  return found;
}

}  // namespace

Rule attention_logits() {
  return {
      .cause = "attention_logits",
      .title = "exploding attention logits",
      .doc =
          "The largest attention score grows to 30 or more: by a factor of 3 within one iteration, "
          "or by a factor of 8 within 32 iterations after it was steady. Scores below 10 count as "
          "10. The growth of a model that learns to attend is slower or ends below these limits.",
      .stage = Stage::values,
      .required = {"max", "one_key%"},
      .recorded_by = "LogTensorStats of `scores` (max, one_key%)",
      .alternatives =
          "A learning rate that is too high for the query and key weights; queries and keys "
          "without normalization.",
      .next_step =
          "telens plot RUN --layer '{layer}' --tensor scores --stat max; set qk_norm_type of "
          "MultiheadAttention to bound the logits",
      .find = find_attention_logits};
}

}  // namespace telens::analysis
