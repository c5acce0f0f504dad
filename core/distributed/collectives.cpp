#include "core/distributed/collectives.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

#include <atomic>
#include <numeric>
#include <utility>

#include "core/distributed/collective_watch.h"

namespace telens {
namespace {

std::atomic<std::uint64_t> collective_count{0};
std::atomic<std::uint64_t> byte_count{0};

// Counts a collective that begins.
void count(const at::Tensor& sent) {
  collective_count.fetch_add(1, std::memory_order_relaxed);
  byte_count.fetch_add(sent.nbytes(), std::memory_order_relaxed);
}

// `sent` lives until the collective has ended.
struct Running {
  at::Tensor result;
  at::Tensor sent;
  c10::intrusive_ptr<c10d::Work> work;
  CollectiveWatch::OnResult on_result;
};

PendingTensor pending(Running running) {
  count(running.sent);
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

}  // namespace

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
                                RingChannel channel) {
  at::Tensor sent = x.contiguous();
  const int size = group->getSize();
  if (sent.numel() == 0 || size == 1) return PendingTensor(sent);
  at::Tensor got = at::empty_like(sent);
  const int rank = group->getRank();
  const int tag = static_cast<int>(channel);
  std::vector<at::Tensor> out{sent};
  std::vector<at::Tensor> in{got};
  const auto send = [&] { return group->send(out, (rank + 1) % size, tag); };
  const auto receive = [&] { return group->recv(in, (rank + size - 1) % size, tag); };
  // Where transfers of one pair of ranks run one after the other, both must take the same one.
  auto first = rank % 2 == 0 ? send() : receive();
  auto second = rank % 2 == 0 ? receive() : send();
  count(sent);
  at::Tensor result = got;
  return {std::move(result), [sent, got, first, second] {
            first->wait();
            second->wait();
          }};
}

CollectiveCounts collective_counts() {
  return {collective_count.load(std::memory_order_relaxed),
          byte_count.load(std::memory_order_relaxed)};
}

}  // namespace telens
