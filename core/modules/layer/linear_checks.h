// Checks of the tensors that a linear layer receives, and comparisons over the ranks that divide
// it.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <utility>

#include "core/modules/layer/linear_parallel.h"
#include "core/modules/shared/forward_context.h"
#include "core/quantization/delayed_scaling.h"

namespace telens {

// Shape, dtype and device of an activation that may not exist yet.
class ActivationMeta {
 public:
  ActivationMeta(at::IntArrayRef sizes, const at::Tensor& like) : sizes_(sizes), like_(like) {}

  at::IntArrayRef sizes() const { return sizes_; }
  std::int64_t numel() const { return c10::multiply_integers(sizes_); }
  at::ScalarType scalar_type() const { return like_.scalar_type(); }
  at::Device device() const { return like_.device(); }
  const at::Tensor& like() const { return like_; }

 private:
  at::IntArrayRef sizes_;
  const at::Tensor& like_;
};

// Throw ShapeError or UsageError that names the layer.
void check_dtypes(const std::string& layer, const ActivationMeta& input, const at::Tensor& weight);
void check_shapes(const std::string& layer, const ActivationMeta& input, const at::Tensor& weight);

// FP8 GEMMs on GPUs require features in multiples of 16; all devices check this, so that a run on
// the CPU also works on a GPU. Any number of tokens is valid: the GEMM pads them
// (core/quantization/quantized_tensor.h).
void check_fp8_shapes(const std::string& layer, const ForwardContext& context,
                      const ActivationMeta& input, const at::Tensor& weight);

void check_tensor_parallel(const std::string& layer, const TensorParallel& tensor_parallel);

// Checks a divided sequence, the input's first dimension.
void check_sequence(const std::string& layer, const LinearParallel& parallel,
                    const ActivationMeta& input);

// ---- checks over the ranks that divide a layer: ranks that differ would wait for each other in
// collectives that do not match

// The checks of a layer, and the results that its next forward does not compare again.
class ParallelChecks {
 public:
  // Throws UsageError if the FP8 data on different ranks may have different scales under delayed
  // scaling. A sequence-parallel layer requires the same scale: amaxes must be reduced over all
  // ranks of tp_group.
  void check_shared_scales(const std::string& layer, const LinearParallel& parallel,
                           const DelayedScaling& recipe, const ProcessGroupPtr& amax_group);

  // Compares the first forward over ranks: parallel mode, recipe, dtype and shape of the input.
  void compare_first_forward(const std::string& layer, const LinearParallel& parallel,
                             const ForwardContext& context, const ActivationMeta& input);
  // Call instead if this rank rejects its first forward: the other ranks then raise an error with
  // `reason` instead of waiting for this rank.
  void report_rejected_forward(const std::string& layer, const LinearParallel& parallel,
                               const char* reason);

  // Compares the operands that features modify and the overlaps that the layer requests.
  // Communicates only if this forward modifies other operands than the previous one.
  void compare_operands(const std::string& layer, const LinearParallel& parallel,
                        const ForwardContext& context);

 private:
  std::pair<std::string, std::string> compared_groups_;  // names of tp_group and fp8_group
  bool compared_forward_ = false;
  bool compared_overlap_ = false;
  std::uint32_t modified_ = 0;       // bits of RoutingPlan::modify
  std::uint8_t high_precision_ = 0;  // bits of RoutingPlan::high_precision
};

}  // namespace telens
