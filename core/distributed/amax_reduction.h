// The largest amax over the ranks of a group: one collective a group, however many layers.
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

  // Packs, reduces and unpacks, group by group. A NaN on any rank comes out as infinity: like any
  // amax that is not finite it keeps the scale.
  void run();

 private:
  struct Group {
    ProcessGroupPtr group;
    std::vector<at::Tensor> amaxes;
  };
  std::vector<Group> groups_;
};

}  // namespace telens
