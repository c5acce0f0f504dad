#include "core/distributed/symmetric_memory.h"

#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/core/Event.h>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <torch/csrc/distributed/c10d/symm_mem/SymmetricMemory.hpp>

#include <algorithm>
#include <bit>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include "core/distributed/collectives.h"
#include "core/distributed/state_by_group.h"

namespace telens {
namespace {

namespace symmetric = c10d::symmetric_memory;

// The operators require multiples of this many bytes.
constexpr std::int64_t kVectorBytes = 16;
// Buffer sizes are powers of two, so that few buffers serve inputs of any size.
constexpr std::uint64_t kSmallestBuffer = 4096;

struct SymmetricName {
  const char* argument;
  SymmetricSum sum;
  const char* op;
};
constexpr SymmetricName kSymmetricNames[] = {
    {"multimem_all_reduce", SymmetricSum::multimem, "symm_mem::multimem_all_reduce_"},
    {"two_shot", SymmetricSum::two_shot, "symm_mem::two_shot_all_reduce_"},
    {"one_shot", SymmetricSum::one_shot, "symm_mem::one_shot_all_reduce"},
};

const SymmetricName& find_symmetric_name(SymmetricSum how) {
  return kSymmetricNames[static_cast<std::size_t>(how) - 1];
}

// The memory of a group on one GPU that every rank can read. Old buffers are kept: a kernel of
// another rank may still read them.
struct SymmetricBuffers {
  std::vector<at::Tensor> made;    // uint8, by increasing size
  std::optional<c10::Event> free;  // recorded when the most recent sum left the buffer
};

// Held from a sum's copy into a buffer to its copy out of it: all layers of a group share a buffer.
struct SymmetricGroup {
  std::mutex mutex;
  std::map<c10::DeviceIndex, SymmetricBuffers> by_gpu;
};

SymmetricGroup& find_group(c10d::ProcessGroup& group) {
  static std::mutex mutex;
  static auto& all = *new StateByGroup<std::unique_ptr<SymmetricGroup>>;
  const std::lock_guard lock(mutex);
  std::unique_ptr<SymmetricGroup>& known = all.of(group);
  if (!known) known = std::make_unique<SymmetricGroup>();
  return *known;
}

[[noreturn]] void refuse_symmetric(SymmetricSum how, const std::string& why,
                                   std::string_view mend = "leave symmetric_ar_type out") {
  raise<UsageError>("symmetric_ar_type '{}': {}; {}", find_symmetric_name(how).argument, why, mend);
}

// Torch's rendezvous does not know groups that were created in C++.
void make_known(c10d::ProcessGroup& group) {
  const std::string& name = group.getGroupName();
  try {
    symmetric::get_group_info(name);
  } catch (const c10::Error&) {
    symmetric::set_group_info(
        name, group.getRank(), group.getSize(),
        c10::make_intrusive<c10d::PrefixStore>("telens/symmetric_memory", group.getStore()));
  }
}

// Returns `bytes` of symmetric memory. All ranks request the same sizes in the same order, so all
// of them join the rendezvous of a new buffer.
at::Tensor take_memory(std::vector<at::Tensor>& made, c10d::ProcessGroup& group, c10::Device device,
                       std::int64_t bytes, SymmetricSum how) {
  if (made.empty() || made.back().numel() < bytes) {
    const auto size = static_cast<std::int64_t>(
        std::bit_ceil(std::max(static_cast<std::uint64_t>(bytes), kSmallestBuffer)));
    try {
      make_known(group);
      at::Tensor buffer =
          symmetric::empty_strided_p2p({size}, {1}, at::kByte, device, std::nullopt, std::nullopt);
      symmetric::rendezvous(buffer, group.getGroupName());
      made.push_back(std::move(buffer));
    } catch (const c10::Error& error) {
      refuse_symmetric(how, fmt::format("torch makes no symmetric memory among the ranks of "
                                        "tp_group: {}",
                                        error.what_without_backtrace()));
    }
  }
  return made.back().narrow(0, 0, bytes);
}

at::Tensor call_symmetric(const SymmetricName& name, const at::Tensor& x,
                          const std::string& group) {
  const auto op = c10::Dispatcher::singleton().findSchema({name.op, ""});
  if (!op)
    refuse_symmetric(name.sum, fmt::format("this torch version lacks the operator {}", name.op));
  torch::jit::Stack stack{x, "sum", group};
  op->callBoxed(stack);
  return stack.back().toTensor();
}

bool takes_symmetric(const at::Tensor& x, c10d::ProcessGroup& group) {
  const bool typed = x.scalar_type() == at::kFloat || x.scalar_type() == at::kBFloat16;
  return x.is_cuda() && typed && x.numel() != 0 &&
         group.getBackend(at::kCUDA)->getBackendName() == "nccl";
}

}  // namespace

SymmetricSum symmetric_sum_from_name(const char* module, const std::string& name) {
  if (name.empty()) return SymmetricSum::none;
  for (const SymmetricName& each : kSymmetricNames) {
    if (name == each.argument) return each.sum;
  }
  raise<UsageError>(
      "{}: symmetric_ar_type is '{}'; expected None, multimem_all_reduce, two_shot or one_shot",
      module, name);
}

PendingTensor sum_in_symmetric_memory(const at::Tensor& x, const ProcessGroupPtr& group,
                                      SymmetricSum how) {
  if (how == SymmetricSum::none || !takes_symmetric(x, *group)) return sum_over_ranks(x, group);
  if (how == SymmetricSum::multimem &&
      !symmetric::has_multicast_support(at::kCUDA, x.device().index())) {
    refuse_symmetric(how, "the GPUs of tp_group have no multicast", "give two_shot or one_shot");
  }
  const auto bytes = static_cast<std::int64_t>(x.nbytes());
  const std::int64_t whole = (bytes + kVectorBytes - 1) / kVectorBytes * kVectorBytes;
  SymmetricGroup& state = find_group(*group);
  const std::lock_guard lock(state.mutex);
  SymmetricBuffers& buffers = state.by_gpu[x.device().index()];
  const at::Tensor shared =
      take_memory(buffers.made, *group, x.device(), whole, how).view(x.scalar_type());
  const c10::Stream stream = c10::impl::VirtualGuardImpl(at::kCUDA).getStream(x.device());
  if (buffers.free) buffers.free->block(stream);
  const auto on_result = collective_watches::begin({CollectiveKind::sum, x, group});
  count_collective(x);
  shared.narrow(0, 0, x.numel()).copy_(x.reshape({-1}));
  // The unused rest of the last vector is summed too.
  const at::Tensor sums = call_symmetric(find_symmetric_name(how), shared, group->getGroupName());
  at::Tensor result = sums.narrow(0, 0, x.numel()).view(x.sizes()).clone();
  buffers.free.emplace(at::kCUDA).record(stream);
  if (on_result) on_result(result);
  return PendingTensor(std::move(result));
}

}  // namespace telens
