// Operations on tensors that the debug session, its statistics engine and its observing features
// need. No LibTorch: hooks/libtorch/tensor_ops.cpp calls the operators of core/ops and LibTorch.
//
// Results are on the device of the first argument unless stated otherwise. Nothing waits for a
// device unless stated otherwise.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "core/base/collective_kind.h"
#include "core/base/tensor_handle.h"
#include "core/formats/format_id.h"
#include "core/formats/scheme.h"
#include "core/ops/collective_sums_layout.h"
#include "core/ops/statistics_layout.h"
#include "hooks/observation.h"

namespace telens {

// ---- modes of the calling thread

// Autograd records nothing while it lives.
class TELENS_EXPORT NoGradScope {
 public:
  NoGradScope();
  ~NoGradScope();
  NoGradScope(const NoGradScope&) = delete;
  NoGradScope& operator=(const NoGradScope&) = delete;

 private:
  bool before_;
};

// New tensors are plain tensors with values while it lives, in any mode of this thread
// (core/ops/torch_internals.h).
class PlainTensorScope {
 public:
  PlainTensorScope();
  ~PlainTensorScope();
  PlainTensorScope(const PlainTensorScope&) = delete;
  PlainTensorScope& operator=(const PlainTensorScope&) = delete;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

// The kernels of accumulate functions that this thread enqueues read `word` on their device when
// they run, and do nothing if it is 0 (core/ops/device.h).
class GateScope {
 public:
  explicit GateScope(const std::int64_t* word);
  ~GateScope();
  GateScope(const GateScope&) = delete;
  GateScope& operator=(const GateScope&) = delete;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

namespace tensor_ops {

// Returns true if work that is enqueued for x's device now becomes part of a graph.
bool is_capturing(const TensorHandle& x);

// ---- memory

// int64 [count]
TensorHandle filled(std::int64_t count, std::int64_t value, DeviceId device);
void fill(const TensorHandle& x, std::int64_t value);
void copy(const TensorHandle& into, const TensorHandle& from);
TensorHandle clone(const TensorHandle& x);
// Returns a copy as FP64 [numel] that does not share memory with x.
TensorHandle copy_as_doubles(const TensorHandle& x);
// Returns the first elements of a vector, as a view.
TensorHandle front(const TensorHandle& x, std::int64_t count);
// Returns rows of new memory, each with the values of a vector.
std::vector<TensorHandle> repeat(const TensorHandle& row, std::int64_t rows);
// Copies all elements to the host, row by row. Waits.
TELENS_EXPORT std::vector<double> to_doubles(const TensorHandle& x);
// Returns the tensor without its autograd history.
TensorHandle detach(const TensorHandle& x);
// Waits. The result is contiguous; a contiguous tensor on the host is returned itself.
TensorHandle to_host(const TensorHandle& x);
// The counter of in-place changes; 0 for inference tensors.
std::uint32_t get_version(const TensorHandle& x);
// Returns true if both show the same elements of the same memory in the same way.
bool are_the_same_values(const TensorHandle& a, const TensorHandle& b);

// ---- statistics of a tensor (core/ops/statistics.h)

struct StatisticsCasts {
  std::vector<TensorHandle> scales;  // one FP32 number each
  std::vector<FormatId> formats;
  bool moments = false;  // also fills TensorSums::moments
};
TensorHandle statistics(const TensorHandle& x, const StatisticsCasts& casts = {});
void accumulate_statistics(const TensorHandle& x, const StatisticsCasts& casts,
                           const TensorHandle& accumulator);
TensorHandle empty_statistics(std::int64_t casts, DeviceId device);

struct BlockRangeOptions {
  std::int64_t size = 32;
  std::int64_t dims = 1;
  bool both_orientations = false;
};
void accumulate_block_ranges(const TensorHandle& x, const BlockRangeOptions& blocks,
                             const TensorHandle& accumulator);
TensorHandle empty_block_ranges(DeviceId device);

// One orientation of a tensor in a block format.
struct BlockCast {
  QuantizedCodes codes = {};
  FormatId format = FormatId::e4m3;
  ScalingMode mode = ScalingMode::tensor;
};
void accumulate_block_cast(const TensorHandle& x, const BlockCast& cast,
                           const TensorHandle& accumulator);
void accumulate_what_ifs(const TensorHandle& x, std::span<const ops::WhatIfCast> casts,
                         std::span<const TensorHandle> accumulators);
TensorHandle empty_block_casts(DeviceId device);

TensorHandle attention_statistics(const ops::AttentionScores& scores);

// ---- scales

// The scale of current scaling for this format: FP32, 1 element. Reads x.
TensorHandle current_scale(const TensorHandle& x, FormatId format);
TensorHandle reciprocal(const TensorHandle& x);
// Returns the scale whose reciprocal is scale_inv: the last candidate (FP32, 1 element) that has
// it, else the reciprocal of scale_inv, which may differ from the scale in one bit.
TensorHandle scale_of(const TensorHandle& scale_inv, std::span<const TensorHandle> candidates);

// ---- casts in blocks

// The matrix [numel / size(-1), size(-1)] of a tensor, without its autograd history.
TensorHandle as_matrix(const TensorHandle& x);
TensorHandle transpose(const TensorHandle& matrix);
// [rows, columns] -> FP32, after the random Hadamard transform of columns with these signs.
TensorHandle hadamard_transform(const TensorHandle& matrix, std::uint16_t signs);

// The cast that the default quantizer of a recipe makes, without random numbers.
struct DefaultCast {
  // Set if its statistics do not require its codes.
  std::optional<ops::WhatIfCast> what_if = std::nullopt;
  bool is_transformed = false;  // the columnwise copy has a Hadamard transform
};
DefaultCast describe_default_cast(RecipeId recipe, FormatId format, TensorName tensor,
                                  bool columnwise);
struct DefaultCopy {
  BlockCast cast = {};
  std::optional<std::uint16_t> hadamard_signs = std::nullopt;  // of a columnwise copy
};
DefaultCopy cast_by_default(const TensorHandle& matrix, RecipeId recipe, FormatId format,
                            TensorName tensor, bool columnwise);

// int64 [rows / block height, columns / block length, kBlockErrorsWords], rounded up.
TensorHandle block_errors(const TensorHandle& x, const BlockCast& cast);
// int64: a bin for each scale.
TensorHandle scale_bins(const TensorHandle& scale_inv);
// int64 [kCopiesDifferenceWords]
TensorHandle copies_difference(const BlockCast& rowwise, const BlockCast& columnwise,
                               std::optional<std::uint16_t> hadamard_signs);

// ---- histograms

enum class Bins : std::uint8_t { exponents, codes };
TensorHandle empty_histogram(Bins bins, DeviceId device);
void count_values(Bins bins, const TensorHandle& x, const TensorHandle& counts);

// ---- comparisons of ranks

// int64 [2] (core/ops/tensor_digest.h)
TensorHandle digest(const TensorHandle& x);
// Like digest(), but a single FP32 number has its bits in the first word.
TensorHandle digest_of_scale(const TensorHandle& scale);
// Combines a digest with another one that comes after it.
TensorHandle append_digest(const TensorHandle& known, const TensorHandle& next);
// [parts * n, ...] -> int64 [parts, 2]
TensorHandle digests_of_parts(const TensorHandle& x, std::int64_t parts);
// FP64 [kSumsNumbers] (core/ops/collective_sums.h)
TensorHandle collective_sums(const TensorHandle& x, CollectiveKind kind, std::int64_t first,
                             std::int64_t whole);
// int64 [kExchangeWords] (core/ops/collective_sums.h)
TensorHandle exchange_words(const TensorHandle& rows, std::span<const std::int64_t> counts,
                            std::int64_t rank, bool received);
// [...] -> [parts, numel / parts]
TensorHandle in_parts(const TensorHandle& x, std::int64_t parts);
// The group over which the running autocast region reduces amaxes; null if this rank keeps its own.
RankGroupPtr running_amax_group();

// ---- samples

// The elements of x at these places of its flattened form.
TensorHandle take(const TensorHandle& x, std::span<const std::int64_t> places);
// Replaces elements of a vector.
void put(const TensorHandle& x, std::span<const std::int64_t> places, const TensorHandle& values);
// Adds a number to each index.
TensorHandle add(const TensorHandle& indices, std::int64_t offset);
// Rows of a matrix, or the columns as rows.
TensorHandle select(const TensorHandle& matrix, std::int64_t dimension,
                    const TensorHandle& indices);
// [m, k] x [n, k]^T -> FP64 [m, n], with bias[columns] added if the bias is defined.
TensorHandle exact_product(const TensorHandle& rows, const TensorHandle& columns,
                           const TensorHandle& bias, const TensorHandle& indices_of_columns);
// Elements of a matrix where the rows and columns cross, in FP64.
TensorHandle crossings(const TensorHandle& matrix, const TensorHandle& rows,
                       const TensorHandle& columns);
// Vectors one after the other, in FP64 on the host. Waits.
TensorHandle join_as_doubles(std::span<const TensorHandle> vectors);

}  // namespace tensor_ops

// ---- checks of foreign code

// The state of torch's default generators for the CPU and for one other device. Reading a state
// does not synchronize: the state of a GPU's generator is on the host.
class RandomState {
 public:
  // device: also covers this device's generator; nullopt, or the CPU, for none. Not during a graph
  // capture.
  explicit RandomState(std::optional<DeviceId> device);
  ~RandomState();

  // Restores the states if they have changed; returns true if any had.
  bool restore();

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

// Counts in-place changes of tensors while it lives, which autograd does not do in the forwards and
// backwards of layers. Does not detect writes that bypass torch or go through .data.
class MutationGuard {
 public:
  MutationGuard();
  ~MutationGuard();
  MutationGuard(const MutationGuard&) = delete;
  MutationGuard& operator=(const MutationGuard&) = delete;

  // Undefined handles, and no operand, are ignored.
  void add(const TensorHandle& tensor);
  void add(const ObservedOperand& operand);

  // Returns true if any of them was written to.
  bool was_written() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace telens
