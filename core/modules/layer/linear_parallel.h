// How one linear layer is divided among the ranks of its tensor-parallel group, and what it sends.
//
// Column: each rank has rows of the weight, that is, some of the output features. Row: each has
// columns of it, and the outputs are summed (Megatron-LM, https://arxiv.org/abs/1909.08053). With
// sequence parallelism whatever lies outside of such a pair of layers is divided along the first
// dimension: column gathers its input, row scatters its sum (https://arxiv.org/abs/2205.05198).
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "core/base/names.h"
#include "core/distributed/symmetric_memory.h"
#include "core/modules/shared/parameter_options.h"
#include "core/modules/shared/parameter_placement.h"

namespace telens {

class LinearOverlap;
struct OverlapSwitches;

enum class ParallelMode : std::uint8_t { none, column, row };

struct LinearParallel {
  ParallelMode mode = ParallelMode::none;
  bool sequence = false;                              // only with more than one rank
  std::int64_t size = 1;                              // ranks
  ProcessGroupPtr group;                              // may come after construction
  std::shared_ptr<const LinearOverlap> overlap = {};  // nullptr: no GEMM overlaps as a setting says
  SymmetricSum symmetric_sum = SymmetricSum::none;    // how a row layer sums its output

  bool is_divided() const { return mode != ParallelMode::none && size > 1; }
  bool gathers_input() const { return mode == ParallelMode::column && sequence; }
  bool gathers_gradient() const { return mode == ParallelMode::row && sequence; }
  bool sums_output() const { return mode == ParallelMode::row && size > 1; }
  bool sums_dgrad() const { return mode == ParallelMode::column && size > 1; }
  bool sums(TensorName name) const {
    return (name == TensorName::output && sums_output()) ||
           (name == TensorName::dgrad && sums_dgrad());
  }
  bool gathers_operands() const { return gathers_input() || gathers_gradient(); }
  bool gathers(TensorName name) const {
    return (name == TensorName::activation && gathers_input()) ||
           (name == TensorName::gradient && gathers_gradient());
  }
  // Inside the GEMM it would be added once a rank.
  bool adds_bias_to_sum() const { return sums_output(); }

  // True if each rank has the tensor of the layer, whole: for statistics.
  bool replicates(TensorName name) const {
    return is_divided() && !sequence && is_before_or_behind(name);
  }

  // True for what all ranks have alike without sequence parallelism: column's input, row's output.
  bool is_before_or_behind(TensorName name) const;

  // Sizes of this rank's weight, of those of the whole one. Throw UsageError where there is a rest.
  std::int64_t own_in_features(const char* module, std::int64_t in_features) const;
  std::int64_t own_out_features(const char* module, std::int64_t out_features) const;

  ParameterPlacement weight_placement() const;
  ParameterPlacement bias_placement() const;
  // Norm weights are whole on each rank; under sequence parallelism gradients are partial sums.
  ParameterPlacement norm_placement() const { return {.sequence_parallel = sequence}; }

  // Settles `overlap`. Throws UsageError where the switches cannot be followed
  // (LinearOverlap::make).
  void ask_for_overlap(const char* module, const OverlapSwitches& switches,
                       const ParameterOptions& options);

  // Begins to sum the partial product of all ranks, [rows, features]; with sequence parallelism a
  // rank gets its own rows.
  PendingTensor sum(const at::Tensor& product) const {
    if (sequence) return sum_and_scatter_rows(product, group);
    const bool row = mode == ParallelMode::row;
    return sum_in_symmetric_memory(product, group, row ? symmetric_sum : SymmetricSum::none);
  }
};

// From a module's options, whose tp_size and sequence_parallel it settles. UsageError for a
// mode other than "", "column" and "row".
LinearParallel linear_parallel(const char* module, ParameterOptions& options);

// size / parts. Throws UsageError naming what is divided where there is a rest.
std::int64_t divide(const char* module, const char* what, std::int64_t size, std::int64_t parts);

}  // namespace telens
