// Observes the collectives of parallel layers. No LibTorch: hooks/libtorch/collective_observer.cpp
// receives them from core/distributed/collective_watch.h.
#pragma once

#include <functional>
#include <memory>

#include "core/base/collective_kind.h"
#include "core/base/tensor_handle.h"
#include "hooks/rank_group.h"

namespace telens {

// A collective that is about to start. It may overwrite `sent`.
struct ObservedCollective {
  CollectiveKind kind;
  TensorHandle sent;
  RankGroupPtr group;
  const RowCounts* rows = nullptr;  // of an exchange, for all ranks of the group; else nullptr
};

// Called on any thread, possibly concurrently. Must not throw.
class CollectiveObserver {
 public:
  virtual ~CollectiveObserver() = default;

  // Receives the result when it is available. Empty if it is not required.
  using OnResult = std::function<void(const TensorHandle& result)>;
  virtual OnResult begin(const ObservedCollective& collective) = 0;
};

// Shows an observer the collectives of layers until end(). The observer stays alive while a
// collective that it observes runs.
class CollectiveObservation {
 public:
  explicit CollectiveObservation(std::shared_ptr<CollectiveObserver> observer);
  ~CollectiveObservation();
  CollectiveObservation(const CollectiveObservation&) = delete;
  CollectiveObservation& operator=(const CollectiveObservation&) = delete;

  void end();

 private:
  struct Watch;
  std::shared_ptr<Watch> watch_;
};

}  // namespace telens
