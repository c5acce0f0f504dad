// Accumulators on a tensor's device, and the casts whose effect they measure: casts of the running
// recipe and hypothetical casts. No LibTorch.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "hooks/observation.h"
#include "hooks/statistics/requests.h"
#include "hooks/tensor_ops.h"

namespace telens::features {

// A tensor with its block-scaled codes in the same orientation, or with a hypothetical cast.
struct BlockCopy {
  // [rows, columns]. If the codes have a Hadamard transform, x is transformed, in FP32.
  TensorHandle x = {};
  tensor_ops::BlockCast cast = {};
  // A hypothetical cast without codes, instead of `cast`. x is the original matrix in either
  // orientation.
  std::optional<ops::WhatIfCast> what_if = {};
  // Signs of the Hadamard transform of a columnwise copy; nullopt if it is not transformed.
  std::optional<std::uint16_t> hadamard_signs = {};
};

// Returns one copy per cast of a block recipe. `x`: the high-precision tensor, or the dequantized
// tensor if only codes are stored. A cast of the running recipe reads its codes. Other casts use
// the deterministic default quantizer of their recipe, which only creates codes for a Hadamard
// transform.
std::vector<BlockCopy> block_copies(const ObservedTensor& call, const TensorHandle& x,
                                    std::span<const CastRequest> casts);

// Returns the reason why block_copies() or statistics of its copies would fail for a cast of a
// block recipe; nullopt if they would not. `sizes`: the sizes of x.
std::optional<std::string> reason_against_copy(const ObservedTensor& call, const CastRequest& cast,
                                               std::span<const std::int64_t> sizes);

// Returns the cast of the copy for the tensor's first GEMM, or for its second GEMM if the first
// copy is not quantized. Returns nullopt if neither is quantized.
std::optional<RunningCast> running_cast(const ObservedTensor& call);

// Computes the scales of casts with one scale per tensor.
class CastScales {
 public:
  // `x`: the tensor to cast. Both arguments must outlive this object.
  CastScales(const ObservedTensor& call, const TensorHandle& x) : call_(call), x_(x) {}

  // Returns the scale: FP32, one element. Current scaling requires a separate read for the amax,
  // once per format.
  TensorHandle of(const CastRequest& cast);

 private:
  TensorHandle current(FormatId format);
  TensorHandle scale_of_copy();

  const ObservedTensor& call_;
  const TensorHandle& x_;
  std::vector<std::pair<FormatId, TensorHandle>> current_;
};

// The accumulators of a RequestSet on one device, in the order of its casts, block casts and
// blocks.
struct Accumulators {
  TensorHandle sums;                           // statistics_words(casts)
  std::vector<TensorHandle> block_casts = {};  // kCastSumsWords each
  std::vector<TensorHandle> ranges = {};       // kBlockRangesWords each

  // Returns neutral accumulators.
  static Accumulators empty(const RequestSet& set, DeviceId device);

  // Accumulates block casts and ranges, but not the sums, which may be stored separately.
  void add_blocks(const TensorHandle& x, const RequestSet& set, std::span<const BlockCopy> copies,
                  bool both_orientations);
  // Accumulates everything.
  void add(const TensorHandle& x, const RequestSet& set, const tensor_ops::StatisticsCasts& casts,
           std::span<const BlockCopy> copies, bool both_orientations);

  // Returns a deep copy.
  Accumulators clone() const;
};

}  // namespace telens::features
