// How a linear layer is divided among the ranks of its tensor-parallel group, and its
// communication.
//
// Column: each rank has rows of the weight (some output features). Row: each rank has columns, and
// the outputs are summed (Megatron-LM, https://arxiv.org/abs/1909.08053). With sequence
// parallelism, tensors outside of such a pair of layers are divided along the first dimension:
// column gathers its input, row scatters its sum (https://arxiv.org/abs/2205.05198).
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "core/base/names.h"
#include "core/distributed/collectives.h"
#include "core/modules/shared/parameter_options.h"

namespace telens {

class LinearOverlap;

// Module arguments that request overlaps of GEMMs (userbuffers.h), named as in Transformer Engine.
struct OverlapSwitches {
  bool ag = false;
  bool rs = false;
  bool rs_dgrad = false;
  bool bulk_dgrad = false;
  bool bulk_wgrad = false;
  std::string name = {};  // of a linear layer: "qkv", "proj", "fc1" or "fc2"

  OverlapSwitches named(const char* ub_name) const {
    OverlapSwitches switches = *this;
    switches.name = ub_name;
    return switches;
  }

  // Describes these options in a struct of options.
  template <typename Owner, typename Visitor>
  static void describe_in(Visitor&& visit, OverlapSwitches Owner::*member) {
    visit.nested(
        "ub_overlap_ag", member, &OverlapSwitches::ag,
        "with sequence_parallel and initialize_ub: a column layer gathers its input during "
        "fprop, a row layer its output's gradient during dgrad");
    visit.nested("ub_overlap_rs", member, &OverlapSwitches::rs,
                 "a row layer reduce-scatters its output during fprop");
    visit.nested("ub_overlap_rs_dgrad", member, &OverlapSwitches::rs_dgrad,
                 "a column layer reduce-scatters its dgrad during dgrad, instead of ub_bulk_*");
    visit.nested("ub_bulk_dgrad", member, &OverlapSwitches::bulk_dgrad,
                 "a column layer gathers wgrad's input during dgrad");
    visit.nested("ub_bulk_wgrad", member, &OverlapSwitches::bulk_wgrad,
                 "a column layer reduce-scatters its dgrad during wgrad");
  }
  template <typename Owner, typename Visitor>
  static void describe_named_in(Visitor&& visit, OverlapSwitches Owner::*member) {
    describe_in<Owner>(visit, member);
    visit.nested("ub_name", member, &OverlapSwitches::name,
                 "whose settings of initialize_ub the layer takes: qkv, proj, fc1 or fc2");
  }
};

enum class ParallelMode : std::uint8_t { none, column, row };

struct LinearParallel {
  ParallelMode mode = ParallelMode::none;
  bool sequence = false;                              // only with more than one rank
  std::int64_t size = 1;                              // ranks
  ProcessGroupPtr group;                              // may be set after construction
  std::shared_ptr<const LinearOverlap> overlap = {};  // nullptr if no GEMM overlaps
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
  // In the GEMM the bias would be added once per rank.
  bool adds_bias_to_sum() const { return sums_output(); }

  // True if each rank has the whole tensor (for statistics).
  bool replicates(TensorName name) const {
    return is_divided() && !sequence && is_replicated_side(name);
  }

  // True for tensors that are equal on all ranks without sequence parallelism: input and dgrad of
  // column, output and its gradient of row.
  bool is_replicated_side(TensorName name) const;

  // Return the sizes of this rank's part of the weight. Throw UsageError if they are not divisible.
  std::int64_t own_in_features(const char* module, std::int64_t in_features) const;
  std::int64_t own_out_features(const char* module, std::int64_t out_features) const;

  ParameterPlacement weight_placement() const;
  ParameterPlacement bias_placement() const;
  // Norm weights are replicated; under sequence parallelism their gradients are partial sums.
  ParameterPlacement norm_placement() const { return {.sequence_parallel = sequence}; }

  // Sets `overlap`. Throws UsageError if the requested overlaps are not possible
  // (LinearOverlap::make).
  void request_overlap(const char* module, const OverlapSwitches& switches,
                       const ParameterOptions& options);

  // Starts to sum the partial product [rows, features] over ranks; with sequence parallelism each
  // rank receives its rows.
  PendingTensor sum(const at::Tensor& product) const {
    if (sequence) return sum_and_scatter_rows(product, group);
    const bool row = mode == ParallelMode::row;
    return sum_in_symmetric_memory(product, group, row ? symmetric_sum : SymmetricSum::none);
  }
};

// Creates the description from a module's options and sets their tp_size and sequence_parallel.
// Throws UsageError for a mode other than "", "column" and "row".
LinearParallel linear_parallel(const char* module, ParameterOptions& options);

// Returns size / parts. Throws UsageError naming `what` if it is not divisible.
std::int64_t divide(const char* module, const char* what, std::int64_t size, std::int64_t parts);

}  // namespace telens
