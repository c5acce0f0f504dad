// A feature that compares ranks: each rank's data is sent to all ranks at the end of an iteration.
#pragma once

#include <chrono>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "core/base/collective_kind.h"
#include "hooks/model_tensor.h"
#include "hooks/rank_group.h"

namespace telens {

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

}  // namespace telens
