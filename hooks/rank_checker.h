// Features that compare ranks: each rank's data is sent to all ranks at the end of an iteration.
// They see tensors of the model, collectives of the program and collectives of parallel layers. No
// LibTorch.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "core/base/collective_kind.h"
#include "core/base/tensor_handle.h"
#include "hooks/rank_group.h"

namespace telens {

// A tensor of a model that layers do not pass to their features: the program shows it.
struct ModelTensor {
  enum class Kind : std::uint8_t {
    weight,       // a parameter that is not a GEMM operand: norm weights, biases, embeddings
    gradient,     // any parameter's gradient, as the optimizer receives it
    amax_history  // [length], for a tensor under delayed scaling
  };

  Kind kind = Kind::weight;
  std::string module;  // module name that sections select by
  std::string layer;   // the layer's name in the run
  std::string tensor;  // a name of the contract: "weight", "wgrad", "activation", ...
  TensorHandle value;
  // Ranks with the same part of the whole tensor have the same value; "" if the part is the whole.
  // Any text that names the part identically on all ranks.
  std::string part = {};
};

// A collective of the program: the tensor that this rank sent, unmodified, and the result on this
// rank.
struct ProgramCollective {
  std::string name;
  CollectiveKind kind = CollectiveKind::sum;
  TensorHandle sent;    // [ranks * rows, ...] for a reduce-scatter
  TensorHandle result;  // [ranks * rows, ...] for a gather; the size of `sent` for an exchange
  debug::ReductionGroup group;  // null for all ranks
};

// A second base class of a feature, in addition to Feature. The session calls it in step(), on all
// ranks, in iterations in which the feature's entry is due.
class RankChecker {
 public:
  virtual ~RankChecker() = default;

  // Returns true if it reads tensors of a model in these iterations.
  virtual bool wants_model() const { return false; }
  // Called before get_words(). The feature's section selects the module.
  virtual void look_at(const ModelTensor& tensor) {}

  virtual void look_at_collective(const ProgramCollective& collective) {}

  // Returns the words that this rank sends: any number, including none.
  virtual std::vector<std::int64_t> get_words(std::int64_t iteration) = 0;
  // Receives all ranks' words, in the order of the world.
  virtual void compare(std::int64_t iteration,
                       std::span<const std::vector<std::int64_t>> of_ranks) = 0;

  // Returns how long this rank waits for the other ranks; depends only on the configuration.
  virtual std::chrono::seconds longest_wait() const = 0;
};

// ---- collectives of parallel layers; hooks/libtorch/c10d_group.cpp implements the observation

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
