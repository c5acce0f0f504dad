// Collectives of one tensor over a group, begun now and waited for where the result is used.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <vector>

#include "core/base/error.h"
#include "core/distributed/process_group.h"

namespace telens {

// The result of a collective that runs. It keeps alive what the collective reads and writes.
class PendingTensor {
 public:
  PendingTensor() = default;
  explicit PendingTensor(at::Tensor ready) : tensor_(std::move(ready)) {}
  PendingTensor(at::Tensor result, std::function<void()> wait)
      : tensor_(std::move(result)), wait_(std::move(wait)) {}

  bool defined() const { return tensor_.defined(); }

  // On a GPU the current stream waits, not the host. A failed collective throws here.
  at::Tensor wait();

 private:
  at::Tensor tensor_;
  std::function<void()> wait_;  // empty: ready
};

// Every rank calls them in the same order, with tensors of one dtype and, but for send_rows, one
// shape; a tensor of one shape without elements is not sent.

// [rows, ...] on each rank -> [ranks * rows, ...], in the order of ranks. FP8 and FP4 codes go as
// the uint8 that they are stored as.
PendingTensor gather_rows(const at::Tensor& x, const ProcessGroupPtr& group);

// The sum over ranks, in x's dtype; x itself may be overwritten.
PendingTensor sum_over_ranks(const at::Tensor& x, const ProcessGroupPtr& group);

// This rank's rows of that sum: [rows, ...] -> [rows / ranks, ...].
PendingTensor sum_and_scatter_rows(const at::Tensor& x, const ProcessGroupPtr& group);

// How many rows go to each rank of a group and come from it, this one included.
struct RowCounts {
  std::vector<std::int64_t> sent;
  std::vector<std::int64_t> received;

  RowCounts reversed() const { return {received, sent}; }
};

// [sum(sent), ...] -> [sum(received), ...]: all-to-all, in the order of ranks. Ranks have different
// counts of rows, and one without any takes part.
PendingTensor send_rows(const at::Tensor& x, const RowCounts& counts, const ProcessGroupPtr& group);

// Two kinds of tensors that travel round a ring at one time and do not mix.
enum class RingChannel : std::uint8_t { values, gradients };

// x goes to the next rank, the last one's to the first; the result is what the rank before sent, of
// x's shape. Even ranks send first, odd ones receive first. A group of one rank gets x back.
// is_shown: to collective watches; a ring in place of a collective shows that one instead.
PendingTensor pass_to_next_rank(const at::Tensor& x, const ProcessGroupPtr& group,
                                RingChannel channel, bool is_shown = false);

// The collectives that this process has begun through the functions above, but for amax reductions.
struct CollectiveCounts {
  std::uint64_t collectives = 0;
  std::uint64_t bytes = 0;  // size of the tensors that were handed over
};
TELENS_EXPORT CollectiveCounts collective_counts();

// Counts a collective that begins elsewhere.
void count_collective(const at::Tensor& sent);

}  // namespace telens
