#include "nccl_backend.h"

#include <torch/csrc/distributed/c10d/ProcessGroupNCCL.hpp>

namespace gpt {

c10::intrusive_ptr<c10d::Backend> make_nccl_backend(const c10::intrusive_ptr<c10d::Store>& store,
                                                    int rank, int size,
                                                    const GroupOptions& options) {
  const auto of_backend = c10d::ProcessGroupNCCL::Options::create();
  of_backend->timeout = options.timeout;
  of_backend->global_ranks_in_group = options.ranks;
  of_backend->group_name = options.description;
  return c10::make_intrusive<c10d::ProcessGroupNCCL>(store, rank, size, of_backend);
}

}  // namespace gpt
