// Groups of the processes that torchrun started, and collectives over them, as in
// torch.distributed: gloo on CPUs, NCCL on GPUs if the build includes it.
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

// The group of all processes. They meet at MASTER_ADDR:MASTER_PORT, in the store of torchrun's
// agent or in a store that rank 0 serves. Throws telens::UsageError if the build or the environment
// does not support it, telens::Error if other ranks do not join.
telens::ProcessGroupPtr join_world(int rank, int ranks, const at::Device& device);

struct GroupOptions {
  std::vector<std::uint64_t> ranks;  // ranks in the world, ascending, including this process
  std::string description;
  at::Device device = at::kCPU;  // kCPU: the group only supports CPU tensors
  std::chrono::milliseconds timeout = std::chrono::minutes(30);
};

// Creates a group of some ranks. Only these ranks call it. Two groups must not have the same ranks
// and description.
telens::ProcessGroupPtr make_group(const telens::ProcessGroupPtr& world,
                                   const GroupOptions& options);

// Replaces the tensor by its sum over the group.
void sum_over(const telens::ProcessGroupPtr& group, at::Tensor tensor);

void wait_for_all(const telens::ProcessGroupPtr& group);

}  // namespace gpt
