#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

#include "analysis/rules/rules.h"
#include "analysis/rules/scalar_reads.h"

namespace telens::analysis {
namespace {

// The first step of Adam changes an element by lr |g| / (|g| + eps), which is lr for all gradients
// well above eps. Decoupled weight decay adds lr * decay * |w|: 10 % for a decay of 0.1 and a
// weight of 1, in one direction or the other, so the median moves by less. A step counter that is
// one ahead gives a factor of sqrt(1 + b2) / (1 + b1): 0.74 for (0.9, 0.999) and 0.735 for (0.9,
// 0.95).
constexpr double kMost = 1.2;
constexpr double kLeast = 1 / kMost;

const Resume* resume_at(const Facts& facts, std::int64_t iteration) {
  const auto found = std::ranges::find_if(facts.resumes(), [&](const Resume& resume) {
    return resume.first == iteration && resume.last_before != INT64_MIN;
  });
  return found == facts.resumes().end() ? nullptr : &*found;
}

std::vector<Finding> find(const Facts& facts) {
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
            "the optimizer begins without moments, although the run was resumed: its state was not "
            "saved or not loaded";
        finding.next_step =
            "load optimizer.state_dict() after the optimizer was created for the final parameters, "
            "and check that optimizer.state is not empty before the first step";
        return {std::move(finding)};
      }
      if (!std::isfinite(change) || (change >= kLeast && change <= kMost)) continue;
      finding.last = facts.last_iteration();
      finding.summary = fmt::format(
          "the first step of Adam changes a weight by {:.3g} times the learning rate instead of 1: "
          "its step counter or its moments do not begin at zero",
          change);
      return {std::move(finding)};
    }
  }
  return {};
}

}  // namespace

Rule optimizer_step() {
  return {
      .cause = "optimizer_step",
      .title = "optimizer whose state does not fit its step",
      .doc =
          "The first step of Adam changes each element by the learning rate, whatever the "
          "gradient: the median change is 1 in units of the rate. Reported: a median that is off "
          "by 20 %, as from a step counter that had already advanced, and moments that begin "
          "anew in the first step of a resumed run. Visible in the first step only.",
      .stage = Stage::update,
      .scalars = {"first_update"},
      .needs_optimizer = true,
      .recorded_by = "telens.watch, of a torch.optim.Adam or AdamW with FP32 weights",
      .alternatives =
          "Gradients below the optimizer's epsilon; a second stage that begins with a new "
          "optimizer on purpose.",
      .next_step =
          "print optimizer.state[parameter] before the first step: step has to be 0, exp_avg and "
          "exp_avg_sq zero",
      .find = find};
}

}  // namespace telens::analysis
