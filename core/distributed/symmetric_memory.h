// Sums over ranks in torch's symmetric memory: each rank's kernel reads what the others wrote.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>

#include "core/distributed/collectives.h"

namespace telens {

// Transformer Engine's symmetric_ar_type. multimem: added up by the switch between the GPUs;
// two_shot: each rank adds up its part and the others read it; one_shot: each adds up everything.
enum class SymmetricSum : std::uint8_t { none, multimem, two_shot, one_shot };

// "": none. Throws UsageError for a name other than multimem_all_reduce, two_shot and one_shot.
SymmetricSum symmetric_sum_from_name(const char* module, const std::string& name);

// sum_over_ranks, on GPUs by torch's symm_mem operators. Tensors that are not on GPUs, groups of
// other backends than NCCL, and dtypes that those operators do not take (all but FP32 and BF16) are
// summed as ever. Throws UsageError where GPUs of the group cannot reach each other's memory.
PendingTensor sum_in_symmetric_memory(const at::Tensor& x, const ProcessGroupPtr& group,
                                      SymmetricSum how);

}  // namespace telens
