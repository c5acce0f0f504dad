#include "nccl_backend.h"

namespace gpt {

c10::intrusive_ptr<c10d::Backend> make_nccl_backend(const c10::intrusive_ptr<c10d::Store>& store,
                                                    int rank, int size,
                                                    const GroupOptions& options) {
  return {};
}

}  // namespace gpt
