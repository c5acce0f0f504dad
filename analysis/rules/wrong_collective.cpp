#include <algorithm>
#include <utility>

#include "analysis/rules/compared_ranks.h"
#include "analysis/rules/rules.h"

namespace telens::analysis {
namespace {

std::vector<Finding> find(const Facts& facts) {
  auto lost = find_compared(
      facts,
      {.cause = "wrong_collective",
       .statistic = "nonfinite_lost",
       .summary = "fewer NaN or infinities came out of a collective than a rank sent into it",
       .others = "collective"});
  auto wrong = find_compared(facts, {.cause = "wrong_collective",
                                     .statistic = "collectives_wrong",
                                     .summary = "other values came out of a collective than the "
                                                "ranks sent",
                                     .others = "collective"});
  if (wrong.empty()) return lost;
  if (lost.empty()) return wrong;
  return lost.front().first <= wrong.front().first ? std::move(lost) : std::move(wrong);
}

}  // namespace

Rule wrong_collective() {
  return {.cause = "wrong_collective",
          .title = "a collective from which something else comes than was sent",
          .doc =
              "CollectiveCheck has compared what each rank sent with what came out: a NaN that was "
              "lost (gloo's maximum of 1 and NaN is 1), a group that leaves ranks out, a transfer "
              "that changed bits.",
          .stage = Stage::setup,
          // A run in which gradients were compared had no collective to look at.
          .required = {"collectives_wrong|gradient_differs", "nonfinite_lost|gradient_differs"},
          .compares_ranks = true,
          .recorded_by = "CollectiveCheck",
          .alternatives =
              "debug.check_collective() with another group or `op` than the collective "
              "had, or with a tensor that the collective had overwritten already.",
          .next_step =
              "telens info RUN; its warning says which collective and which rank; "
              "reduce isnan() beside a maximum, or turn NaN into infinity first",
          .find = find};
}

}  // namespace telens::analysis
