#include "core/distributed/collectives.h"

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/ivalue.h>
#include <ATen/ops/_foreach_copy.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <c10/core/Event.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>
#include <atomic>
#include <bit>
#include <limits>
#include <map>
#include <memory>
#include <mutex>
#include <numeric>
#include <optional>
#include <string_view>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <torch/csrc/distributed/c10d/symm_mem/SymmetricMemory.hpp>
#include <utility>
#include <vector>

#include "core/distributed/state_by_group.h"

namespace telens {
namespace {

std::atomic<std::uint64_t> collective_count{0};
std::atomic<std::uint64_t> byte_count{0};

// `sent` stays alive until the collective has ended.
struct Running {
  at::Tensor result;
  at::Tensor sent;
  c10::intrusive_ptr<c10d::Work> work;
  CollectiveWatch::OnResult on_result;
};

PendingTensor pending(Running running) {
  count_collective(running.sent);
  at::Tensor result = running.result;
  return {std::move(result), [running = std::move(running)] {
            running.work->wait();
            if (running.on_result) running.on_result(running.result);
          }};
}

at::Tensor empty_rows(const at::Tensor& like, std::int64_t rows) {
  std::vector<std::int64_t> sizes = like.sizes().vec();
  sizes[0] = rows;
  return at::empty(sizes, like.options());
}

// gloo's send requires host memory; its collectives copy by themselves.
bool sends_from_host(const at::Tensor& x, c10d::ProcessGroup& group) {
  const at::DeviceType device = x.device().type();
  return device != at::kCPU && group.getBackend(device)->getBackendName() == "gloo";
}

// Counts of rows that all go to the next rank.
RowCounts rows_round_ring(std::int64_t rows, const c10d::ProcessGroup& group) {
  const auto size = static_cast<std::size_t>(group.getSize());
  const auto rank = static_cast<std::size_t>(group.getRank());
  RowCounts counts{std::vector<std::int64_t>(size, 0), std::vector<std::int64_t>(size, 0)};
  counts.sent[(rank + 1) % size] = rows;
  counts.received[(rank + size - 1) % size] = rows;
  return counts;
}

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// Stores a process group in an autograd node's saved data.
class GroupHolder final : public torch::CustomClassHolder {
 public:
  static c10::IValue keep(ProcessGroupPtr group) {
    return c10::IValue::make_capsule(c10::make_intrusive<GroupHolder>(std::move(group)));
  }
  static ProcessGroupPtr of(const c10::IValue& kept) {
    return static_cast<const GroupHolder&>(*kept.toCapsule()).group_;
  }

  explicit GroupHolder(ProcessGroupPtr group) : group_(std::move(group)) {}

 private:
  ProcessGroupPtr group_;
};

class ExchangeRowsFunction : public torch::autograd::Function<ExchangeRowsFunction> {
 public:
  static at::Tensor forward(AutogradContext* context, const at::Tensor& x, const RowCounts* counts,
                            const ProcessGroupPtr* group) {
    const at::AutoDispatchBelowADInplaceOrView below_autograd;
    context->saved_data["group"] = GroupHolder::keep(*group);
    context->saved_data["sent"] = counts->sent;
    context->saved_data["received"] = counts->received;
    return send_rows(x, *counts, *group).wait();
  }

  static variable_list backward(AutogradContext* context, variable_list grads) {
    const RowCounts counts{context->saved_data["sent"].toIntVector(),
                           context->saved_data["received"].toIntVector()};
    const ProcessGroupPtr group = GroupHolder::of(context->saved_data["group"]);
    return {exchange_rows(grads[0], counts.reversed(), group), at::Tensor(), at::Tensor()};
  }
};

at::Tensor scatter_sum(const at::Tensor& x, const ProcessGroupPtr& group);

class GatherSequenceFunction : public torch::autograd::Function<GatherSequenceFunction> {
 public:
  static at::Tensor forward(AutogradContext* context, const at::Tensor& x,
                            const ProcessGroupPtr* group) {
    const at::AutoDispatchBelowADInplaceOrView below_autograd;
    context->saved_data["group"] = GroupHolder::keep(*group);
    return gather_rows(x, *group).wait();
  }

  static variable_list backward(AutogradContext* context, variable_list grads) {
    const ProcessGroupPtr group = GroupHolder::of(context->saved_data["group"]);
    return {scatter_sum(grads[0], group), at::Tensor()};
  }
};

// The adjoint: this rank's rows of the sum over ranks.
class ScatterSumFunction : public torch::autograd::Function<ScatterSumFunction> {
 public:
  static at::Tensor forward(AutogradContext* context, const at::Tensor& x,
                            const ProcessGroupPtr* group) {
    const at::AutoDispatchBelowADInplaceOrView below_autograd;
    context->saved_data["group"] = GroupHolder::keep(*group);
    return sum_and_scatter_rows(x, *group).wait();
  }

  static variable_list backward(AutogradContext* context, variable_list grads) {
    const ProcessGroupPtr group = GroupHolder::of(context->saved_data["group"]);
    return {gather_sequence(grads[0], group), at::Tensor()};
  }
};

at::Tensor scatter_sum(const at::Tensor& x, const ProcessGroupPtr& group) {
  return ScatterSumFunction::apply(x, &group);
}

}  // namespace

void count_collective(const at::Tensor& sent) {
  collective_count.fetch_add(1, std::memory_order_relaxed);
  byte_count.fetch_add(sent.nbytes(), std::memory_order_relaxed);
}

at::Tensor PendingTensor::wait() {
  if (wait_) {
    wait_();
    wait_ = nullptr;
  }
  return tensor_;
}

PendingTensor gather_rows(const at::Tensor& x, const ProcessGroupPtr& group) {
  at::Tensor sent = x.contiguous();
  at::Tensor whole = empty_rows(sent, sent.size(0) * size_of(*group));
  if (sent.numel() == 0) return PendingTensor(whole);
  auto on_result = collective_watches::begin({CollectiveKind::gather, sent, group});
  auto work = group->_allgather_base(whole, sent);
  return pending({whole, sent, std::move(work), std::move(on_result)});
}

PendingTensor sum_over_ranks(const at::Tensor& x, const ProcessGroupPtr& group) {
  at::Tensor sum = x.contiguous();
  if (sum.numel() == 0) return PendingTensor(sum);
  std::vector<at::Tensor> tensors{sum};
  auto on_result = collective_watches::begin({CollectiveKind::sum, sum, group});
  auto work = group->allreduce(tensors);
  return pending({sum, sum, std::move(work), std::move(on_result)});
}

PendingTensor sum_and_scatter_rows(const at::Tensor& x, const ProcessGroupPtr& group) {
  at::Tensor sent = x.contiguous();
  at::Tensor part = empty_rows(sent, sent.size(0) / size_of(*group));
  if (sent.numel() == 0) return PendingTensor(part);
  auto on_result = collective_watches::begin({CollectiveKind::sum_and_scatter, sent, group});
  auto work = group->_reduce_scatter_base(part, sent);
  return pending({part, sent, std::move(work), std::move(on_result)});
}

PendingTensor send_rows(const at::Tensor& x, const RowCounts& counts,
                        const ProcessGroupPtr& group) {
  at::Tensor sent = x.contiguous();
  RowCounts rows = counts;
  at::Tensor received = empty_rows(
      sent, std::accumulate(rows.received.begin(), rows.received.end(), std::int64_t{0}));
  auto on_result = collective_watches::begin({CollectiveKind::exchange, sent, group, &rows});
  auto work = group->alltoall_base(received, sent, rows.received, rows.sent);
  return pending({received, sent, std::move(work), std::move(on_result)});
}

PendingTensor pass_to_next_rank(const at::Tensor& x, const ProcessGroupPtr& group,
                                RingChannel channel, bool is_shown) {
  at::Tensor given = x.contiguous();
  const int size = group->getSize();
  if (given.numel() == 0 || size == 1) return PendingTensor(given);
  CollectiveWatch::OnResult on_result;
  if (is_shown) {
    const RowCounts rows = rows_round_ring(given.size(0), *group);
    on_result = collective_watches::begin({CollectiveKind::pass, given, group, &rows});
  }
  const bool on_host = sends_from_host(given, *group);
  at::Tensor sent = on_host ? given.cpu() : given;
  at::Tensor got = at::empty_like(sent);
  at::Tensor result = on_host ? at::empty_like(given) : got;
  const int rank = group->getRank();
  const int tag = static_cast<int>(channel);
  std::vector<at::Tensor> out{sent};
  std::vector<at::Tensor> in{got};
  const auto send = [&] { return group->send(out, (rank + 1) % size, tag); };
  const auto receive = [&] { return group->recv(in, (rank + size - 1) % size, tag); };
  // If transfers between two ranks are serialized, both ranks must use the same order.
  auto first = rank % 2 == 0 ? send() : receive();
  auto second = rank % 2 == 0 ? receive() : send();
  count_collective(sent);
  auto finish = [sent, got, result, first, second, on_result = std::move(on_result)] {
    first->wait();
    second->wait();
    if (!result.is_same(got)) result.copy_(got);
    if (on_result) on_result(result);
  };
  return {std::move(result), std::move(finish)};
}

at::Tensor exchange_rows(const at::Tensor& x, const RowCounts& counts,
                         const ProcessGroupPtr& group) {
  return ExchangeRowsFunction::apply(x, &counts, &group);
}

at::Tensor gather_sequence(const at::Tensor& x, const ProcessGroupPtr& group) {
  return GatherSequenceFunction::apply(x, &group);
}

CollectiveCounts collective_counts() {
  return {collective_count.load(std::memory_order_relaxed),
          byte_count.load(std::memory_order_relaxed)};
}

// ---- the maximum of amaxes

void AmaxReduction::add(at::Tensor amax, const ProcessGroupPtr& group) {
  auto found = std::find_if(groups_.begin(), groups_.end(),
                            [&](const Group& entry) { return entry.group == group; });
  if (found == groups_.end()) {
    groups_.push_back({group, {}});
    found = std::prev(groups_.end());
  }
  found->amaxes.push_back(std::move(amax));
}

void AmaxReduction::run() {
  for (const Group& entry : groups_) {
    at::Tensor packed = at::cat(entry.amaxes);
    const auto on_result =
        collective_watches::begin({CollectiveKind::maximum, packed, entry.group});
    // Backends disagree on the maximum of a NaN; all of them propagate infinity.
    packed.nan_to_num_(std::numeric_limits<double>::infinity(),
                       std::numeric_limits<double>::infinity());
    std::vector<at::Tensor> tensors{packed};
    c10d::AllreduceOptions options;
    options.reduceOp = c10d::ReduceOp::MAX;
    entry.group->allreduce(tensors, options)->wait();
    if (on_result) on_result(packed);
    std::vector<std::int64_t> sizes;
    for (const at::Tensor& amax : entry.amaxes) sizes.push_back(amax.numel());
    at::_foreach_copy_(entry.amaxes, packed.split_with_sizes(sizes));
  }
}

// ---- observers

namespace collective_watches {
namespace {

struct Watches {
  std::mutex mutex;
  std::vector<std::shared_ptr<CollectiveWatch>> all;
};

Watches& watches() {
  static auto& instance = *new Watches;  // leaked: threads may run while the process exits
  return instance;
}

}  // namespace

std::atomic<int> count{0};

void add(const std::shared_ptr<CollectiveWatch>& watch) {
  const std::lock_guard lock(watches().mutex);
  watches().all.push_back(watch);
  count = static_cast<int>(watches().all.size());
}

void remove(const std::shared_ptr<CollectiveWatch>& watch) {
  const std::lock_guard lock(watches().mutex);
  std::erase(watches().all, watch);
  count = static_cast<int>(watches().all.size());
}

CollectiveWatch::OnResult show(const CollectiveCall& call) {
  std::vector<std::shared_ptr<CollectiveWatch>> all;
  {
    const std::lock_guard lock(watches().mutex);
    all = watches().all;
  }
  std::vector<std::pair<std::shared_ptr<CollectiveWatch>, CollectiveWatch::OnResult>> wanted;
  for (const auto& watch : all) {
    if (auto on_result = watch->begin(call)) wanted.emplace_back(watch, std::move(on_result));
  }
  if (wanted.empty()) return {};
  return [wanted = std::move(wanted)](const at::Tensor& result) {
    for (const auto& [watch, on_result] : wanted) on_result(result);
  };
}

}  // namespace collective_watches

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
