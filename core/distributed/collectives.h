// Collectives of a tensor over a group: asynchronous ones, differentiable ones that wait, the
// reduction of amaxes, observers of all of them, and sums in torch's symmetric memory.
#pragma once

#include <ATen/core/Tensor.h>

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "core/base/collective_kind.h"
#include "core/base/error.h"
#include "core/distributed/process_group.h"

namespace telens {

// The result of a running collective. Keeps its input and output alive.
class PendingTensor {
 public:
  PendingTensor() = default;
  explicit PendingTensor(at::Tensor ready) : tensor_(std::move(ready)) {}
  PendingTensor(at::Tensor result, std::function<void()> wait)
      : tensor_(std::move(result)), wait_(std::move(wait)) {}

  bool defined() const { return tensor_.defined(); }

  // On a GPU the current stream waits, not the host. Throws if the collective failed.
  at::Tensor wait();

 private:
  at::Tensor tensor_;
  std::function<void()> wait_;  // empty if ready
};

// All ranks call these functions in the same order, with tensors of the same dtype and (except for
// send_rows) the same shape. Empty tensors of the same shape are not sent.

// [rows, ...] on each rank -> [ranks * rows, ...], in the order of ranks. FP8 and FP4 codes are
// sent as the uint8 in which they are stored.
PendingTensor gather_rows(const at::Tensor& x, const ProcessGroupPtr& group);

// Returns the sum over ranks in x's dtype. May overwrite x.
PendingTensor sum_over_ranks(const at::Tensor& x, const ProcessGroupPtr& group);

// Returns this rank's rows of the sum: [rows, ...] -> [rows / ranks, ...].
PendingTensor sum_and_scatter_rows(const at::Tensor& x, const ProcessGroupPtr& group);

// [sum(sent), ...] -> [sum(received), ...]: all-to-all in the order of ranks. Counts may differ
// between ranks; a rank without rows also calls it.
PendingTensor send_rows(const at::Tensor& x, const RowCounts& counts, const ProcessGroupPtr& group);

// Two kinds of tensors that may travel in a ring at the same time.
enum class RingChannel : std::uint8_t { values, gradients };

// Sends x to the next rank (the last to the first) and returns the tensor of the previous rank, of
// x's shape. Even ranks send first, odd ranks receive first. A single-rank group gets x back.
// is_shown: to collective watches; a ring that replaces a collective shows the collective instead.
PendingTensor pass_to_next_rank(const at::Tensor& x, const ProcessGroupPtr& group,
                                RingChannel channel, bool is_shown = false);

// x: [sum(sent), ...], ordered by receiving rank -> [sum(received), ...], ordered by sending rank,
// bit for bit. The gradient is the reverse exchange; differentiable any number of times. Every rank
// of the group calls it, also without rows.
at::Tensor exchange_rows(const at::Tensor& x, const RowCounts& counts,
                         const ProcessGroupPtr& group);

// [s, ...] on each rank -> [ranks * s, ...]. The gradient is summed over ranks and scattered;
// differentiable any number of times.
at::Tensor gather_sequence(const at::Tensor& x, const ProcessGroupPtr& group);

// The collectives that this process has started through the functions above, except amax
// reductions.
struct CollectiveCounts {
  std::uint64_t collectives = 0;
  std::uint64_t bytes = 0;  // of the given tensors
};
TELENS_EXPORT CollectiveCounts collective_counts();

// Counts a collective started elsewhere.
void count_collective(const at::Tensor& sent);

// ---- the maximum of amaxes over ranks

// The maximum of amaxes over the ranks of a group, in one collective per group for any number of
// layers.
class AmaxReduction {
 public:
  // amax: FP32, 1-D, replaced by the maximum over the group in run(). Every rank of the group adds
  // tensors of the same sizes in the same order.
  void add(at::Tensor amax, const ProcessGroupPtr& group);

  // Packs, reduces and unpacks, group by group. A NaN on any rank becomes infinity: like any
  // non-finite amax it keeps the scale unchanged.
  void run();

 private:
  struct Group {
    ProcessGroupPtr group;
    std::vector<at::Tensor> amaxes;
  };
  std::vector<Group> groups_;
};

// ---- observers of the data that a rank sends and receives in the collectives of layers

// A collective that is about to start. It may overwrite `sent`.
struct CollectiveCall {
  CollectiveKind kind;
  const at::Tensor& sent;
  const ProcessGroupPtr& group;
  const RowCounts* rows = nullptr;  // of an exchange, for all ranks of the group; else nullptr
};

// Called on any thread, possibly concurrently. Must not throw.
class CollectiveWatch {
 public:
  virtual ~CollectiveWatch() = default;

  // Receives the result when it is available. Empty if it is not required.
  using OnResult = std::function<void(const at::Tensor& result)>;
  virtual OnResult begin(const CollectiveCall& call) = 0;
};

namespace collective_watches {

extern TELENS_EXPORT std::atomic<int> count;  // number of watches

// A watch stays alive while a collective that it observed runs.
TELENS_EXPORT void add(const std::shared_ptr<CollectiveWatch>& watch);
TELENS_EXPORT void remove(const std::shared_ptr<CollectiveWatch>& watch);

CollectiveWatch::OnResult show(const CollectiveCall& call);

// Like show(). Without a watch it costs one integer comparison.
inline CollectiveWatch::OnResult begin(const CollectiveCall& call) {
  if (count.load(std::memory_order_relaxed) == 0) [[likely]] {
    return {};
  }
  return show(call);
}

}  // namespace collective_watches

// ---- sums in torch's symmetric memory: each rank's kernel reads the other ranks' buffers

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
