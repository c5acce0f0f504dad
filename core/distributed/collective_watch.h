// Shows what a rank sends and gets in the collectives of layers to those that watch them.
#pragma once

#include <ATen/core/Tensor.h>

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>

#include "core/distributed/process_group.h"

namespace telens {

// exchange: an all-to-all of rows. pass: to the next rank of a ring, from the one before.
enum class CollectiveKind : std::uint8_t { gather, sum, sum_and_scatter, maximum, exchange, pass };

// Rows go from rank to rank, their bits unchanged.
constexpr bool sends_rows(CollectiveKind kind) {
  return kind == CollectiveKind::exchange || kind == CollectiveKind::pass;
}

struct RowCounts;  // core/distributed/collectives.h

// A collective that is about to begin. `sent` may be overwritten by it.
struct CollectiveCall {
  CollectiveKind kind;
  const at::Tensor& sent;
  const ProcessGroupPtr& group;
  const RowCounts* rows = nullptr;  // where rows are sent, of as many ranks as the group has
};

// Is called on any thread, several at a time, and throws nothing.
class CollectiveWatch {
 public:
  virtual ~CollectiveWatch() = default;

  // To be called with the result once it is there; empty: it is not wanted.
  using OnResult = std::function<void(const at::Tensor& result)>;
  virtual OnResult begin(const CollectiveCall& call) = 0;
};

namespace collective_watches {

extern TELENS_EXPORT std::atomic<int> count;  // how many watch

// A watch stays alive while a collective that it was shown runs.
TELENS_EXPORT void add(const std::shared_ptr<CollectiveWatch>& watch);
TELENS_EXPORT void remove(const std::shared_ptr<CollectiveWatch>& watch);

CollectiveWatch::OnResult show(const CollectiveCall& call);

// The same; without a watch that is one integer compare.
inline CollectiveWatch::OnResult begin(const CollectiveCall& call) {
  if (count.load(std::memory_order_relaxed) == 0) [[likely]] {
    return {};
  }
  return show(call);
}

}  // namespace collective_watches

}  // namespace telens
