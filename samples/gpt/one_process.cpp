// Implements process_groups.h for a build without gloo's headers, which supports only one process.
#include "process_groups.h"

namespace gpt {

telens::ProcessGroupPtr join_world(int rank, int ranks, const at::Device& device) {
  telens::raise<telens::UsageError>(
      "{} ranks need process groups, and this build was configured without gloo's headers: install "
      "them (apt install libgloo-dev), then configure and build again (cmake --preset release; "
      "cmake --build build --target gpt); `samples/gpt.py` takes several ranks without them",
      ranks);
}

telens::ProcessGroupPtr make_group(const telens::ProcessGroupPtr& world,
                                   const GroupOptions& options) {
  telens::raise<telens::UsageError>("{}: this build does not include process groups",
                                    options.description);
}

void sum_over(const telens::ProcessGroupPtr& group, at::Tensor tensor) {}

void wait_for_all(const telens::ProcessGroupPtr& group) {}

}  // namespace gpt
