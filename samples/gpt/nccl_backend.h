// NCCL as the backend of a process group. There are two implementations: nccl_backend.cpp, and
// without_nccl.cpp for a build without CUDA or NCCL's header.
#pragma once

#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include "process_groups.h"

namespace gpt {

// `rank` and `size` refer to the group. Returns null if this build does not include NCCL.
c10::intrusive_ptr<c10d::Backend> make_nccl_backend(const c10::intrusive_ptr<c10d::Store>& store,
                                                    int rank, int size,
                                                    const GroupOptions& options);

}  // namespace gpt
