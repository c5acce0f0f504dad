#include <algorithm>
#include <utility>

#include "analysis/rules/compared_ranks.h"
#include "analysis/rules/rules.h"

namespace telens::analysis {
namespace {

// A scale follows its history: the earlier of the two is the origin.
std::vector<Finding> find(const Facts& facts) {
  auto histories = find_compared(
      facts, {.cause = "rank_scales",
              .statistic = "amax_history_differs",
              .summary = "its amax history is not the one that the other ranks of the group have",
              .others = "tensor"});
  auto scales = find_compared(
      facts, {.cause = "rank_scales",
              .statistic = "scale_differs",
              .summary = "its scale is not the one that the other ranks of the group have",
              .others = "tensor"});
  if (scales.empty()) return histories;
  if (histories.empty()) return scales;
  return scales.front().first <= histories.front().first ? std::move(scales) : std::move(histories);
}

}  // namespace

Rule rank_scales() {
  return {
      .cause = "rank_scales",
      .title = "ranks that cast one tensor with different scales",
      .doc =
          "RankAgreement has found another scale or amax history on a rank than on the others "
          "of the group that has them together: codes that ranks exchange mean other values.",
      .stage = Stage::setup,
      .required = {"scale_differs|amax_history_differs"},
      .compares_ranks = true,
      .follows_causes = {"unreduced_gradient", "rank_mismatch", "unlike_inputs", "unlike_recipes"},
      .recorded_by = "RankAgreement, of layers under an FP8 recipe",
      .alternatives =
          "A rank that resumed from another checkpoint; reduce_amax=False, or an "
          "fp8_group that leaves ranks out.",
      .next_step =
          "telens stats RUN --layer '{layer}' --stat scale_differs --rank {rank}; compare "
          "fp8_group and the loaded _extra_state of that rank with those of the others",
      .find = find};
}

}  // namespace telens::analysis
