// The reads of a tensor in one iteration: the accumulators on its device, and the rows computed
// from them. No LibTorch.
#pragma once

#include <cstdint>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "hooks/engine/layer_reads.h"
#include "hooks/engine/statistics_totals.h"
#include "hooks/observation.h"
#include "hooks/rank_group.h"
#include "hooks/sink.h"
#include "hooks/statistics/requests.h"
#include "hooks/streams.h"
#include "hooks/tensor_ops.h"

namespace telens::features {

// ---- accumulators on a tensor's device, and the casts whose effect they measure: casts of the
// running recipe and hypothetical casts

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

// ---- reads

// Iterates over sums that have been copied to the host.
class HostSums {
 public:
  explicit HostSums(std::span<const TensorHandle> tensors) : tensors_(tensors) {}

  const TensorHandle& next() { return tensors_[next_++]; }
  std::span<const std::int64_t> next_words() {
    const TensorHandle& tensor = next();
    return {tensor.const_data_ptr<std::int64_t>(), static_cast<std::size_t>(tensor.numel())};
  }

 private:
  std::span<const TensorHandle> tensors_;
  std::size_t next_ = 0;
};

// The sums of a tensor of a layer in one iteration, on the tensor's device.
class TensorObservation {
 public:
  // `of` must outlive this object. `weight_group`: the tensor-parallel group of a weight; null if
  // it has none. `number`: the observation's position in the order of first reads.
  TensorObservation(TensorHistory& of, std::int64_t iteration, RankGroupPtr weight_group,
                    std::uint64_t number)
      : of_(of), iteration_(iteration), number_(number), weight_group_(std::move(weight_group)) {}

  bool is_of(const TensorHistory& of, std::int64_t iteration) const {
    return &of_ == &of && iteration_ == iteration;
  }
  std::uint64_t number() const { return number_; }

  // Adds the sums of a graph's reads.
  void add(const RequestSet& set, Accumulators sums);

  // Returns true if a further read would be added: always, except that only the first read of a
  // weight counts.
  bool takes_reads();

  // Additional inputs of read().
  struct Read {
    tensor_ops::StatisticsCasts casts = {};  // one for each cast of the set
    std::vector<BlockCopy> copies = {};      // one for each block cast
    ScaleOrigin scale = {};                  // required if the set contains statistics of a scale
    // Results of GuardedStatistic::add, one per plugin statistic; empty if x is empty.
    std::vector<TensorHandle> defined = {};
  };
  // Adds a read of x.
  void read(const TensorHandle& x, const RequestSet& set, const Read& read);
  // Adds the result of attention_statistics.
  void read_scores(const RequestSet& set, TensorHandle sums);

  // Appends the sums of every read, synchronized with the current stream. No read may follow.
  void give_sums(std::vector<TensorHandle>& sums) const;

  // Computes this rank's totals from the sums that give_sums() appended, copied to the host. Must
  // be called in the order of a tensor's iterations.
  Totals totals(HostSums& sums, DefinedStatistics& defined) const;

  // Declares that each rank of the group reads the same tensor, which then counts once.
  void set_replicas(RankGroupPtr group);

  // Returns true if another rank of the group contributes the same reads (set_replicas).
  bool is_brought_by_another(const RankGroup& group, const Reductions& reductions) const;

  // Adds the destinations of a reader's rows.
  void address(const RowAddresses& addresses);

  // Appends a row per requested statistic, then rows for the remaining counters.
  void append_rows(const Totals& totals, std::string_view group, SeriesTable& series,
                   std::vector<Row>& rows) const;

  bool is_weight() const { return of_.tensor == TensorName::weight; }

  // Returns the group over which the sums are merged; null if they stay local.
  RankGroupPtr group(const Reductions& reductions) const;

  // Returns true if the sums must be merged over ranks, but not in this step.
  bool waits(const Reductions& reductions) const;

  // Returns a hash of layer, tensor and iteration that is equal on all ranks and machines.
  std::uint64_t hash() const;

 private:
  // Reads with equal requests on one stream. Separate sums per stream avoid synchronization between
  // streams. Several parts exist only if micro-batches used different recipes or streams.
  struct Part {
    RequestSet set;
    StreamHandle stream;
    // Sums over the reads. They stay neutral if the set contains statistics of a scale: the scale
    // may differ between reads, so `reads` stores their sums separately.
    Accumulators to;
    std::vector<TensorHandle> reads = {};   // statistics_words(casts) each
    std::vector<ScaleOrigin> scales = {};   // one per read
    std::vector<TensorHandle> scores = {};  // results of attention_statistics, one per read
    // Per plugin statistic: one tensor of sums per read. totals() merges them.
    std::vector<std::vector<TensorHandle>> defined = {};
  };

  bool is_full() const;
  Part& part_for(const RequestSet& set, DeviceId device);
  void add_part(const Part& part, HostSums& sums, Totals& totals) const;
  void add_defined(const Part& part, HostSums& sums, DefinedStatistics& defined,
                   Totals& totals) const;

  const std::string& layer_name() const { return *of_.layer_name; }

  TensorHistory& of_;
  const std::int64_t iteration_;
  const std::uint64_t number_;
  const RankGroupPtr weight_group_;
  std::mutex mutex_;  // guards the members below
  RankGroupPtr replicas_;
  std::vector<Part> parts_;
  RowAddresses addresses_;
};

// Returns true for tensors that are cast to blocks in both orientations: activations and weights,
// of which fprop and the backward GEMMs read different orientations.
bool has_both_orientations(TensorName tensor);

}  // namespace telens::features
