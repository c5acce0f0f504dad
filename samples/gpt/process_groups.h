// Groups of the processes that torchrun started, and collectives over them, as torch.distributed
// makes them: gloo on CPUs, NCCL on GPUs where the build has it.
//
// Two implementations: process_groups.cpp, and one_process.cpp for a build without gloo's headers.
#pragma once

#include <ATen/core/Tensor.h>

#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

#include "core/distributed/process_group.h"

namespace gpt {

// All of them: they meet at MASTER_ADDR:MASTER_PORT, in the store of torchrun's agent or in one
// that rank 0 serves. Throws telens::UsageError for a build or an environment without what that
// takes, telens::Error where the others do not come.
telens::ProcessGroupPtr join_world(int rank, int ranks, const at::Device& device);

struct GroupOptions {
  std::vector<std::uint64_t> ranks;  // their ranks in the world, ascending, this process among them
  std::string description;
  at::Device device = at::kCPU;  // cpu: tensors of CPUs alone
  std::chrono::milliseconds timeout = std::chrono::minutes(30);
};

// Some of them. Only they make the group; no two groups have the same ranks and description.
telens::ProcessGroupPtr make_group(const telens::ProcessGroupPtr& world,
                                   const GroupOptions& options);

// In place.
void sum_over(const telens::ProcessGroupPtr& group, at::Tensor tensor);

void wait_for_all(const telens::ProcessGroupPtr& group);

}  // namespace gpt
