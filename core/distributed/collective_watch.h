// Shows the data that a rank sends and receives in the collectives of layers to observers.
#pragma once

#include <ATen/core/Tensor.h>

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>

#include "core/base/collective_kind.h"
#include "core/distributed/process_group.h"

namespace telens {

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

}  // namespace telens
