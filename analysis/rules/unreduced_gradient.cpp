#include "analysis/rules/compared_ranks.h"
#include "analysis/rules/rules.h"

namespace telens::analysis {
namespace {

std::vector<Finding> find_unreduced_gradient(const Facts& facts) {
  return find_rank_difference(
      facts, {.cause = "unreduced_gradient",
              .statistic = "gradient_differs",
              .summary = "the gradient for the optimizer step differs from the other ranks",
              .others = "gradient"});
}

}  // namespace

Rule unreduced_gradient() {
  return {
      .cause = "unreduced_gradient",
      .title = "gradient not reduced over all ranks",
      .doc =
          "CollectiveCheck compared the gradients of replicated parameters at the end of an "
          "iteration, when all ranks must have the same gradient. The gradient was not reduced, or "
          "the group does not contain all ranks.",
      .stage = Stage::setup,
      .required = {"gradient_differs"},
      .compares_ranks = true,
      .follows_causes = {"unlike_inputs"},
      .recorded_by = "CollectiveCheck, for a model with layer names",
      .alternatives =
          "An optimizer that shards the gradients (`gradients: False`); experts, which differ "
          "between ranks (`allreduce = False` on their parameters); different inputs on ranks of "
          "one tp_group.",
      .next_step =
          "check the reduction of the gradient of {layer}: DistributedDataParallel's "
          "find_unused_parameters and no_sync, and the all-reduce of norm weights over tp_group "
          "under sequence parallelism; check that the ranks of one tp_group get the same batches",
      .find = find_unreduced_gradient};
}

}  // namespace telens::analysis
