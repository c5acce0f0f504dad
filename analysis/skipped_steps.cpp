#include "analysis/skipped_steps.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <vector>

namespace telens::analysis {
namespace {

bool is_of_backward(const Series& series) {
  return get_order_in_step(*series.place.tensor).backward;
}

// Returns the norms of the weights that change during the run.
std::vector<const Series*> norms_of_trained_weights(const Facts& facts) {
  std::vector<const Series*> norms = facts.with("l2_norm");
  std::erase_if(norms, [](const Series* norm) {
    const double first = norm->points.front().value;
    const auto is_same = [&](const Point& point) { return point.value == first; };
    return norm->place.tensor != TensorName::weight || std::ranges::all_of(norm->points, is_same);
  });
  return norms;
}

// What the recorded weights must show to prove that a step was skipped. Each value accepts more
// than the previous one.
enum class Proof : std::uint8_t {
  kept,     // a weight is unchanged in the next iteration
  finite,   // also: finite later, if the next iteration is missing; a step would spoil the weight
  retried,  // also: finite in the next iteration, because the step was repeated successfully
};

// Returns true if at least one recorded weight proves that the optimizer step of this iteration was
// skipped, and no weight contradicts it.
bool step_was_skipped(const std::vector<const Series*>& norms, std::int64_t iteration,
                      Proof proof) {
  bool any = false;
  for (const Series* norm : norms) {
    const auto next = std::ranges::upper_bound(norm->points, iteration, {}, &Point::iteration);
    if (next == norm->points.end()) continue;
    const auto now = norm->at(iteration);
    const bool is_exact = now && next->iteration == iteration + 1;
    const bool is_kept =
        is_exact && proof != Proof::retried ? next->value == *now : std::isfinite(next->value);
    if (!is_kept) return false;
    any = any || is_exact || proof != Proof::kept;
  }
  return any;
}

// A scaler that skips permanently is not searching: skipped steps do not count if more than kMost
// of them are within kWithin iterations.
std::set<std::int64_t> without_endless_search(const std::set<std::int64_t>& skipped) {
  constexpr std::size_t kMost = 16;  // halvings of the scale, from 2^24 to 2^8
  constexpr std::int64_t kWithin = 100;
  const std::vector<std::int64_t> steps(skipped.begin(), skipped.end());
  std::set<std::int64_t> kept = skipped;
  for (std::size_t i = kMost; i < steps.size(); ++i) {
    if (steps[i] - steps[i - kMost] >= kWithin) continue;
    for (std::size_t each = i - kMost; each <= i; ++each) kept.erase(steps[each]);
  }
  return kept;
}

}  // namespace

std::set<std::int64_t> steps_skipped_by_loss_scaler(const Facts& facts) {
  std::set<std::int64_t> candidates;
  std::set<std::int64_t> others;
  for (const Series* series : facts.with("nonfinite")) {  // in training order
    const Series* nan = facts.beside(*series, "nan");
    for (const Point& point : series->points) {
      if (!(point.value > 0)) continue;
      const bool backward = is_of_backward(*series);
      const bool is_first = backward && candidates.insert(point.iteration).second;
      const bool holds_nan = is_first && nan != nullptr && nan->at(point.iteration) > 0.0;
      if (!backward || holds_nan) others.insert(point.iteration);
    }
  }
  // The gradients that overflow may all belong to parameters that are not recorded, so an infinite
  // gradient norm also counts. But clipping by an infinite norm leaves weights finite as well,
  // without a loss scaler.
  std::set<std::int64_t> by_norm_alone;
  const bool has_scaler = std::ranges::any_of(
      facts.scalars(), [](const Scalars& each) { return each.name.ends_with("loss_scale"); });
  for (const Scalars& scalars : facts.scalars()) {
    if (!scalars.name.ends_with("grad_norm")) continue;
    for (const Point& point : scalars.points) {
      const bool is_new = std::isinf(point.value) && candidates.insert(point.iteration).second;
      if (is_new && !has_scaler) by_norm_alone.insert(point.iteration);
    }
  }
  const std::vector<const Series*> norms = norms_of_trained_weights(facts);
  std::erase_if(candidates, [&](std::int64_t iteration) {
    // telens.watch ends an iteration at an optimizer step, and a scaler that skips does not call
    // it.
    const Proof proof = by_norm_alone.contains(iteration) ? Proof::kept
                        : has_scaler                      ? Proof::retried
                                                          : Proof::finite;
    return others.contains(iteration) || !step_was_skipped(norms, iteration, proof);
  });
  return without_endless_search(candidates);
}

}  // namespace telens::analysis
