// The operands that debug features alter of those that a divided layer joins: the same on all
// ranks of its group, or an error.
#pragma once

#include <cstdint>
#include <string>

#include "core/modules/layer/linear_parallel.h"
#include "core/modules/shared/forward_context.h"

namespace telens {

// One of each layer. A rank joins codes where another would join values, and both would wait for
// ever, where their features alter different operands.
class AlteredOperands {
 public:
  // Throws UsageError on ranks that differ. It communicates where this forward alters others than
  // the one before, so that a layer that is not altered pays nothing.
  void compare(const ForwardContext& context, const std::string& layer,
               const LinearParallel& parallel);

 private:
  std::uint32_t modified_ = 0;       // bits of RoutingPlan::modify
  std::uint8_t high_precision_ = 0;  // bits of RoutingPlan::high_precision
};

}  // namespace telens
