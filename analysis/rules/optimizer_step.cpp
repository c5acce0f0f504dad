#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <map>
#include <optional>
#include <vector>

#include "analysis/baseline.h"
#include "analysis/rules/norm_gains.h"
#include "analysis/rules/rules.h"
#include "analysis/rules/scalar_reads.h"

namespace telens::analysis {
namespace {

// Limits of the first step of Adam, in units of the learning rate. The step changes an element by
// lr |g| / (|g| + eps), which is lr for all gradients well above eps. Decoupled weight decay adds
// lr * decay * |w|: 10 % for a decay of 0.1 and a weight of 1, with either sign, so the median
// changes by less. A step counter that is one ahead causes a factor of
// sqrt(1 + b2) / (1 + b1): 0.74 for betas (0.9, 0.999) and 0.735 for (0.9, 0.95).
constexpr double kMaxFirstChange = 1.2;
constexpr double kMinFirstChange = 1 / kMaxFirstChange;

const Resume* resume_at(const Facts& facts, std::int64_t iteration) {
  const auto found = std::ranges::find_if(facts.resumes(), [&](const Resume& resume) {
    return resume.first == iteration && resume.last_before != INT64_MIN;
  });
  return found == facts.resumes().end() ? nullptr : &*found;
}

// In units of the learning rate. With its usual betas, Adam changes an element by at most about
// (1 - b1) / sqrt(1 - b2) = 3.2 times the learning rate, and so the root mean square of a weight.
constexpr double kMaxAdamChange = 5;

// Returns the first of two consecutive steps that change most weights by more than Adam can.
std::optional<std::int64_t> first_impossible_step(const Facts& facts, const Scalars& rates) {
  const std::vector<Series> weights = root_mean_squares(facts, TensorName::weight);
  std::map<std::int64_t, std::size_t> counts;  // weights, by the iteration of the step
  std::size_t compared_weights = 0;
  for (const Series& sizes : weights) {
    if (is_norm(facts.layer_name(sizes.place.layer))) continue;
    ++compared_weights;
    for (std::size_t i = 1; i < sizes.points.size(); ++i) {
      const auto& [iteration, value] = sizes.points[i];
      const Point& before = sizes.points[i - 1];
      const auto rate = value_at(rates, before.iteration);
      if (iteration != before.iteration + 1 || !rate || !(*rate > 0)) continue;
      if (std::abs(value - before.value) > kMaxAdamChange * *rate) ++counts[before.iteration];
    }
  }
  for (const auto& [iteration, count] : counts) {
    const auto next = counts.find(iteration + 1);
    if (2 * count >= compared_weights && next != counts.end() &&
        2 * next->second >= compared_weights) {
      return iteration;
    }
  }
  return std::nullopt;
}

std::optional<Finding> find_impossible_steps(const Facts& facts, const Scalars& first_updates) {
  const Scalars* rates = scalar_beside(facts, first_updates, "lr");
  const auto first = rates != nullptr ? first_impossible_step(facts, *rates) : std::nullopt;
  if (!first) return std::nullopt;
  return Finding{
      .cause = "optimizer_step",
      .place = {.rank = first_updates.rank},
      .first = *first,
      .last = facts.last_iteration(),
      .confidence = kProven,
      .summary = fmt::format(
          "the steps change most weights by more than {:.0f} times the learning rate, which Adam "
          "cannot do: its second moment is too small, for example rounded to zero",
          kMaxAdamChange),
      .evidence = {{rates->name, {}, *first, *value_at(*rates, *first), ""}},
      .next_step =
          "look at optimizer.state[parameter]['exp_avg_sq']: keep it in FP32, or in 8 bits with a "
          "logarithmic map that has no zero for nonzero values"};
}

std::vector<Finding> find_optimizer_step(const Facts& facts) {
  for (const Scalars* steps : scalars_named(facts, "first_update")) {
    for (const auto& [iteration, change] : steps->points) {
      Finding finding{.cause = "optimizer_step",
                      .place = {.rank = steps->rank},
                      .first = iteration,
                      .last = iteration,
                      .confidence = kProven,
                      .evidence = {{steps->name, {}, iteration, change, ""},
                                   {steps->name, {}, iteration, 1, "expected"}}};
      if (resume_at(facts, iteration) != nullptr) {
        finding.summary =
            "the optimizer starts without moments, although the run was resumed: its state was not "
            "saved or not loaded";
        finding.next_step =
            "load optimizer.state_dict() after the optimizer was created for the final parameters, "
            "and check that optimizer.state is not empty before the first step";
        return {std::move(finding)};
      }
      if (!std::isfinite(change) || (change >= kMinFirstChange && change <= kMaxFirstChange))
        continue;
      finding.last = facts.last_iteration();
      finding.summary = fmt::format(
          "the first step of Adam changes a weight by {:.3g} times the learning rate (expected: "
          "1): its step counter or its moments do not start at zero",
          change);
      return {std::move(finding)};
    }
    if (auto found = find_impossible_steps(facts, *steps)) return {std::move(*found)};
  }
  return {};
}

}  // namespace

Rule optimizer_step() {
  return {.cause = "optimizer_step",
          .title = "optimizer state that does not match its step",
          .doc =
              "The first step of Adam changes each element by the learning rate, independent of "
              "the gradient: the median change is 1 in units of the rate. Reported: a median that "
              "is off by 20 %, as from a step counter that had already advanced, and moments that "
              "start at zero again in the first step of a resumed run. Visible in the first step. "
              "Also reported: two consecutive steps that change the root mean square of most "
              "weights by more than 5 times the learning rate, which Adam cannot do.",
          .stage = Stage::update,
          .optional = {"l2_norm", "numel", "std", "mean"},
          .scalars = {"first_update"},
          .needs_optimizer = true,
          .recorded_by = "telens.watch, of a torch.optim.Adam or AdamW with FP32 weights",
          .alternatives =
              "Gradients below the optimizer's epsilon; a second stage that starts with a new "
              "optimizer on purpose.",
          .next_step =
              "print optimizer.state[parameter] before the first step: step, exp_avg and "
              "exp_avg_sq must be 0",
          .find = find_optimizer_step};
}

}  // namespace telens::analysis
