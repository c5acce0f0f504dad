#include <algorithm>
#include <utility>

#include "analysis/rules/compared_ranks.h"
#include "analysis/rules/rules.h"

namespace telens::analysis {
namespace {

std::vector<Finding> find_wrong_collective(const Facts& facts) {
  auto lost = find_rank_difference(
      facts,
      {.cause = "wrong_collective",
       .statistic = "nonfinite_lost",
       .summary =
           "the result of a collective contains fewer NaN or infinities than the input of a rank",
       .others = "collective"});
  auto wrong = find_rank_difference(
      facts, {.cause = "wrong_collective",
              .statistic = "collectives_wrong",
              .summary = "the result of a collective does not match the inputs of the ranks",
              .others = "collective"});
  if (wrong.empty()) return lost;
  if (lost.empty()) return wrong;
  return lost.front().first <= wrong.front().first ? std::move(lost) : std::move(wrong);
}

}  // namespace

Rule wrong_collective() {
  return {.cause = "wrong_collective",
          .title = "collective with a wrong result",
          .doc =
              "CollectiveCheck compared the inputs of a collective on all ranks with its result. A "
              "NaN was lost (the maximum of 1 and NaN is 1 in gloo), the group does not contain "
              "all ranks, or the transfer changed bits.",
          .stage = Stage::setup,
          // If only gradients were compared, the run had no collective to check.
          .required = {"collectives_wrong|gradient_differs", "nonfinite_lost|gradient_differs"},
          .compares_ranks = true,
          .recorded_by = "CollectiveCheck",
          .alternatives =
              "debug.check_collective() called with a different group or `op` than the collective, "
              "or with a tensor that the collective had already overwritten.",
          .next_step =
              "telens info RUN; the warning names the collective and the rank; also reduce "
              "isnan(), or replace NaN by infinity before a maximum",
          .find = find_wrong_collective};
}

}  // namespace telens::analysis
