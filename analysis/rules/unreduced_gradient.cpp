#include "analysis/rules/compared_ranks.h"
#include "analysis/rules/rules.h"

namespace telens::analysis {
namespace {

std::vector<Finding> find(const Facts& facts) {
  return find_compared(
      facts, {.cause = "unreduced_gradient",
              .statistic = "gradient_differs",
              .summary = "its gradient is not the one that the other ranks take their step with",
              .others = "gradient"});
}

}  // namespace

Rule unreduced_gradient() {
  return {.cause = "unreduced_gradient",
          .title = "a gradient that is not the same on all ranks with the parameter",
          .doc =
              "CollectiveCheck has compared the gradients of replicated parameters at the end of "
              "the iteration, where all ranks have to have the same one: it was not reduced, or "
              "over a group that leaves ranks out.",
          .stage = Stage::setup,
          .required = {"gradient_differs"},
          .compares_ranks = true,
          .follows_causes = {"unlike_inputs"},
          .recorded_by = "CollectiveCheck, of a model with names",
          .alternatives =
              "An optimizer that leaves each rank a part of the gradients (`gradients: "
              "False`); experts, which differ from rank to rank (`allreduce = False` "
              "on their parameters); ranks of one tp_group that were given other inputs.",
          .next_step =
              "look for what reduces the gradient of {layer}: DistributedDataParallel's "
              "find_unused_parameters and no_sync, the all-reduce of norm weights over tp_group "
              "under sequence parallelism; and whether the ranks of one tp_group get the same "
              "batches",
          .find = find};
}

}  // namespace telens::analysis
