// A feature that compares ranks: what each has is sent to all of them, at the end of an iteration.
#pragma once

#include <chrono>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "core/distributed/collective_watch.h"
#include "hooks/model_tensor.h"

namespace telens {

// A collective of the program's own: the tensor that this rank sent, as it was before, and what
// came out on this rank.
struct ProgramCollective {
  std::string name;
  CollectiveKind kind = CollectiveKind::sum;
  at::Tensor sent;        // [ranks * rows, ...] of a sum that is scattered
  at::Tensor result;      // [ranks * rows, ...] of a gather; of an exchange sent's size
  ProcessGroupPtr group;  // null: all ranks
};

// A base beside Feature. The session calls it in step(), in iterations in which the feature's entry
// is due, on all ranks alike.
class RankChecker {
 public:
  virtual ~RankChecker() = default;

  // True if it looks at the tensors of a model in these iterations.
  virtual bool wants_model() const { return false; }
  // Before get_words(). The feature's section selects the module.
  virtual void look_at(const ModelTensor& tensor) {}

  virtual void look_at_collective(const ProgramCollective& collective) {}

  // The words that this rank sends: any number, none as well.
  virtual std::vector<std::int64_t> get_words(std::int64_t iteration) = 0;
  // The words of all ranks, in the order of the world.
  virtual void compare(std::int64_t iteration,
                       std::span<const std::vector<std::int64_t>> of_ranks) = 0;

  // How long this rank waits for the others; by the configuration alone.
  virtual std::chrono::seconds longest_wait() const = 0;
};

}  // namespace telens
