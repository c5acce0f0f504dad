// Sums over ranks in torch's symmetric memory: each rank's kernel reads the other ranks' buffers.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>

#include "core/distributed/collectives.h"

namespace telens {

// Transformer Engine's symmetric_ar_type. multimem: the switch between the GPUs adds; two_shot:
// each rank adds its part and the others read it; one_shot: each rank adds everything.
enum class SymmetricSum : std::uint8_t { none, multimem, two_shot, one_shot };

// Returns `none` for "". Throws UsageError for a name other than multimem_all_reduce, two_shot and
// one_shot.
SymmetricSum symmetric_sum_from_name(const char* module, const std::string& name);

// Like sum_over_ranks(), with torch's symm_mem operators on GPUs. Falls back to sum_over_ranks()
// for tensors on other devices, backends other than NCCL, and dtypes other than FP32 and BF16.
// Throws UsageError if the GPUs of the group cannot access each other's memory.
PendingTensor sum_in_symmetric_memory(const at::Tensor& x, const ProcessGroupPtr& group,
                                      SymmetricSum how);

}  // namespace telens
