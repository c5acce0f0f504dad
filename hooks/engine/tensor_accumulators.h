// Accumulators on a tensor's device, and the casts of the tensor whose effect they measure: casts
// of the running recipe and hypothetical ones. No LibTorch.
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

// A tensor and its codes with one scale per block, in the orientation of the codes; or a tensor
// that would be cast.
struct BlockCopy {
  TensorHandle x =
      {};  // [rows, columns]; after a Hadamard transform of the codes: transformed, in FP32
  tensor_ops::BlockCast cast = {};
  // Replaces `cast` if the codes are not needed; x is then the original matrix in any orientation.
  std::optional<ops::WhatIfCast> what_if = {};
  // The signs of the Hadamard transform of a columnwise copy; nullopt if it is not transformed.
  std::optional<std::uint16_t> hadamard_signs = {};
};

// Returns one copy for each cast of a block recipe. x: the high-precision tensor, or the
// dequantized one if only codes are stored. A cast of the running recipe reads that recipe's codes.
// Other casts use the deterministic default quantizer of their recipe; codes are only created for a
// Hadamard transform.
std::vector<BlockCopy> block_copies(const ObservedTensor& call, const TensorHandle& x,
                                    std::span<const CastRequest> casts);

// Returns why block_copies(), or statistics of its copies, would fail for a cast of a block recipe;
// nullopt if they would not. sizes: the sizes of x.
std::optional<std::string> reason_against_copy(const ObservedTensor& call, const CastRequest& cast,
                                               std::span<const std::int64_t> sizes);

// Describes the cast of the copy that feeds the tensor's first GEMM if that copy is quantized, else
// of the copy for the second GEMM. Returns nullopt if neither is quantized.
std::optional<RunningCast> running_cast(const ObservedTensor& call);

// The scales of casts with one scale per tensor.
class CastScales {
 public:
  // x: the tensor that is cast. Both arguments must outlive this object.
  CastScales(const ObservedTensor& call, const TensorHandle& x) : call_(call), x_(x) {}

  // Returns FP32, 1 element. Current scaling costs a separate read for the amax, once per format.
  TensorHandle of(const CastRequest& cast);

 private:
  TensorHandle current(FormatId format);
  TensorHandle scale_of_copy();

  const ObservedTensor& call_;
  const TensorHandle& x_;
  std::vector<std::pair<FormatId, TensorHandle>> current_;
};

// The accumulators of one RequestSet on one device: its casts, block casts and blocks in order.
struct Accumulators {
  TensorHandle sums;                           // statistics_words(casts)
  std::vector<TensorHandle> block_casts = {};  // kCastSumsWords each
  std::vector<TensorHandle> ranges = {};       // kBlockRangesWords each

  // Returns neutral accumulators.
  static Accumulators empty(const RequestSet& set, DeviceId device);

  // Adds everything except the sums, which may be stored separately.
  void add_blocks(const TensorHandle& x, const RequestSet& set, std::span<const BlockCopy> copies,
                  bool both_orientations);
  void add(const TensorHandle& x, const RequestSet& set, const tensor_ops::StatisticsCasts& casts,
           std::span<const BlockCopy> copies, bool both_orientations);

  // Returns a copy of the present sums in separate memory.
  Accumulators clone() const;
};

}  // namespace telens::features
