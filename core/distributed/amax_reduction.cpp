#include "core/distributed/amax_reduction.h"

#include <ATen/ops/_foreach_copy.h>
#include <ATen/ops/cat.h>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

#include <algorithm>
#include <limits>
#include <utility>

#include "core/distributed/collective_watch.h"

namespace telens {

void AmaxReduction::add(at::Tensor amax, const ProcessGroupPtr& group) {
  auto found = std::find_if(groups_.begin(), groups_.end(),
                            [&](const Group& entry) { return entry.group == group; });
  if (found == groups_.end()) {
    groups_.push_back({group, {}});
    found = std::prev(groups_.end());
  }
  found->amaxes.push_back(std::move(amax));
}

void AmaxReduction::run() {
  for (const Group& entry : groups_) {
    at::Tensor packed = at::cat(entry.amaxes);
    const auto on_result =
        collective_watches::begin({CollectiveKind::maximum, packed, entry.group});
    // Backends disagree on the maximum of a NaN; all of them propagate infinity.
    packed.nan_to_num_(std::numeric_limits<double>::infinity(),
                       std::numeric_limits<double>::infinity());
    std::vector<at::Tensor> tensors{packed};
    c10d::AllreduceOptions options;
    options.reduceOp = c10d::ReduceOp::MAX;
    entry.group->allreduce(tensors, options)->wait();
    if (on_result) on_result(packed);
    std::vector<std::int64_t> sizes;
    for (const at::Tensor& amax : entry.amaxes) sizes.push_back(amax.numel());
    at::_foreach_copy_(entry.amaxes, packed.split_with_sizes(sizes));
  }
}

}  // namespace telens
