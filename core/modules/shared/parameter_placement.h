// Attributes of a parameter that optimizers and checkpoints of Megatron-LM ask for.
#pragma once

#include <cstdint>
#include <optional>

namespace telens {

struct ParameterPlacement {
  // The dimension that is divided among the ranks of the tensor-parallel group; nullopt: none.
  std::optional<std::int64_t> partition_dim = {};
  // True: the gradient is that of this rank's part of the sequence, and its owner adds up those of
  // the group. nullopt: not of a kind that may have such a gradient.
  std::optional<bool> sequence_parallel = {};
};

}  // namespace telens
