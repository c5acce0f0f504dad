// The maximum of amaxes over the ranks of a group, in one collective per group for any number of
// layers.
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "core/distributed/process_group.h"

namespace telens {

class AmaxReduction {
 public:
  // amax: FP32, 1-D, replaced by the maximum over the group in run(). Every rank of the group adds
  // tensors of the same sizes in the same order.
  void add(at::Tensor amax, const ProcessGroupPtr& group);

  // Packs, reduces and unpacks, group by group. A NaN on any rank becomes infinity: like any
  // non-finite amax it keeps the scale unchanged.
  void run();

 private:
  struct Group {
    ProcessGroupPtr group;
    std::vector<at::Tensor> amaxes;
  };
  std::vector<Group> groups_;
};

}  // namespace telens
