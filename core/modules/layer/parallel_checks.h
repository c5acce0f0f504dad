// Checks that the ranks which divide a layer run it in the same way. Ranks that differ would wait
// for each other in collectives that do not match.
#pragma once

#include <cstdint>
#include <string>
#include <utility>

#include "core/modules/layer/linear_checks.h"
#include "core/modules/layer/linear_parallel.h"
#include "core/modules/shared/forward_context.h"
#include "core/quantization/delayed_scaling.h"

namespace telens {

// The checks of a layer, and the results that its next forward does not compare again.
class ParallelChecks {
 public:
  // Throws UsageError if the FP8 data on different ranks may have different scales under delayed
  // scaling. A sequence-parallel layer requires the same scale: amaxes must be reduced over all
  // ranks of tp_group.
  void check_shared_scales(const std::string& layer, const LinearParallel& parallel,
                           const DelayedScaling& recipe, const ProcessGroupPtr& amax_group);

  // Compares the first forward over ranks: parallel mode, recipe, dtype and shape of the input.
  void compare_first_forward(const std::string& layer, const LinearParallel& parallel,
                             const ForwardContext& context, const ActivationMeta& input);
  // Call instead if this rank rejects its first forward: the other ranks then raise an error with
  // `reason` instead of waiting for this rank.
  void report_rejected_forward(const std::string& layer, const LinearParallel& parallel,
                               const char* reason);

  // Compares the operands that features modify and the overlaps that the layer requests.
  // Communicates only if this forward modifies other operands than the previous one.
  void compare_operands(const std::string& layer, const LinearParallel& parallel,
                        const ForwardContext& context);

 private:
  std::pair<std::string, std::string> compared_groups_;  // names of tp_group and fp8_group
  bool compared_forward_ = false;
  bool compared_overlap_ = false;
  std::uint32_t modified_ = 0;       // bits of RoutingPlan::modify
  std::uint8_t high_precision_ = 0;  // bits of RoutingPlan::high_precision
};

}  // namespace telens
