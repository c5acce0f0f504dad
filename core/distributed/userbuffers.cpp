#include "core/distributed/userbuffers.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <mutex>
#include <utility>

namespace telens {
namespace {

struct Kept {
  std::mutex mutex;
  std::shared_ptr<const Userbuffers> now;
};

Kept& kept() {
  static auto& instance = *new Kept;  // leaked: threads may run while the process exits
  return instance;
}

void check_sizes(const UserbufferArguments& arguments) {
  const std::int64_t ranks = arguments.tp_size;
  if (ranks < 1 || arguments.world_size % ranks != 0) {
    raise<UsageError>(
        "initialize_ub: tp_size is {}, which does not divide the {} ranks of torch.distributed; "
        "set it to the size of a tensor-parallel group",
        ranks, arguments.world_size);
  }
  const std::vector<std::int64_t>& shape = arguments.shape;
  const auto positive = [](std::int64_t size) { return size > 0; };
  if (shape.size() != 2 || !std::ranges::all_of(shape, positive) || shape[0] % ranks != 0) {
    raise<UsageError>(
        "initialize_ub: shape is [{}]; expected [sequence length * batch size, hidden size] "
        "over all ranks, the first divisible by tp_size={}",
        fmt::join(shape, ", "), ranks);
  }
}

}  // namespace

const OverlapSettings* Userbuffers::find(std::string_view ub_name, std::string_view gemm,
                                         bool fp8) const {
  const std::optional<OverlapsByGemm>& overlaps = by_precision[fp8];
  if (!overlaps) return nullptr;
  const auto found = overlaps->find(fmt::format("{}_{}", ub_name, gemm));
  return found == overlaps->end() ? nullptr : &found->second;
}

std::vector<std::string> initialize_userbuffers(const UserbufferArguments& arguments) {
  const std::lock_guard lock(kept().mutex);
  if (kept().now) {
    raise<UsageError>(
        "initialize_ub: Userbuffers are initialized already; call destroy_ub first to set others");
  }
  check_sizes(arguments);
  auto made = std::make_shared<Userbuffers>();
  made->tp_size = arguments.tp_size;
  std::vector<std::string> warnings;
  for (const UserbufferArguments::Precision& each : arguments.precisions) {
    if (made->by_precision[each.fp8]) {
      raise<UsageError>(
          "initialize_ub: quantization_modes names {} twice; give each precision once",
          each.fp8 ? "FP8" : "NONE");
    }
    made->by_precision[each.fp8] = overlap_settings(each, arguments.tp_size, warnings);
  }
  kept().now = std::move(made);
  return warnings;
}

void destroy_userbuffers() {
  const std::lock_guard lock(kept().mutex);
  kept().now = nullptr;
}

std::shared_ptr<const Userbuffers> userbuffers() {
  const std::lock_guard lock(kept().mutex);
  return kept().now;
}

}  // namespace telens
