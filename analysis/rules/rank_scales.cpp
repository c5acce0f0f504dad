#include <algorithm>
#include <utility>

#include "analysis/rules/compared_ranks.h"
#include "analysis/rules/rules.h"

namespace telens::analysis {
namespace {

// Returns the earlier finding as the origin: a different history leads to a different scale.
std::vector<Finding> find_rank_scales(const Facts& facts) {
  auto histories = find_rank_difference(
      facts, {.cause = "rank_scales",
              .statistic = "amax_history_differs",
              .summary = "the amax history differs from the other ranks of the group",
              .others = "tensor"});
  auto scales =
      find_rank_difference(facts, {.cause = "rank_scales",
                                   .statistic = "scale_differs",
                                   .summary = "the scale differs from the other ranks of the group",
                                   .others = "tensor"});
  if (scales.empty()) return histories;
  if (histories.empty()) return scales;
  return scales.front().first <= histories.front().first ? std::move(scales) : std::move(histories);
}

}  // namespace

Rule rank_scales() {
  return {
      .cause = "rank_scales",
      .title = "different scales for one tensor across ranks",
      .doc =
          "RankAgreement found a scale or an amax history that differs between ranks of the group "
          "that shares it. Quantized values that these ranks exchange have different meanings.",
      .stage = Stage::setup,
      .required = {"scale_differs|amax_history_differs"},
      .compares_ranks = true,
      .follows_causes = {"unreduced_gradient", "rank_mismatch", "unlike_inputs", "unlike_recipes"},
      .recorded_by = "RankAgreement, of layers under an FP8 recipe",
      .alternatives =
          "A rank that resumed from a different checkpoint; reduce_amax=False; an fp8_group that "
          "does not contain all ranks.",
      .next_step =
          "telens stats RUN --layer '{layer}' --stat scale_differs --rank {rank}; compare the "
          "fp8_group and the loaded _extra_state of this rank with the other ranks",
      .find = find_rank_scales};
}

}  // namespace telens::analysis
