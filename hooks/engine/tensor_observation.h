// All reads of one tensor in one iteration, and the rows that they become.
#pragma once

#include <cstdint>
#include <mutex>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/ops/statistics.h"
#include "hooks/engine/accumulators.h"
#include "hooks/engine/block_copies.h"
#include "hooks/engine/layer_reads.h"
#include "hooks/engine/row_addresses.h"
#include "hooks/engine/statistics_totals.h"
#include "hooks/reductions.h"
#include "hooks/sink.h"
#include "hooks/statistics/requests.h"
#include "hooks/stream_order.h"

namespace telens::features {

// Sums that have come to the host, one tensor after the other.
class HostSums {
 public:
  explicit HostSums(std::span<const at::Tensor> tensors) : tensors_(tensors) {}

  const at::Tensor& next() { return tensors_[next_++]; }
  std::span<const std::int64_t> next_words() {
    const at::Tensor& tensor = next();
    return {tensor.const_data_ptr<std::int64_t>(), static_cast<std::size_t>(tensor.numel())};
  }

 private:
  std::span<const at::Tensor> tensors_;
  std::size_t next_ = 0;
};

// The sums of one tensor of one layer in one iteration. Sums stay on the tensor's device.
class TensorObservation {
 public:
  // `of` outlives this. weight_group: the tensor-parallel group of a weight; null: none. number:
  // observations are numbered in the order of their first reads.
  TensorObservation(TensorHistory& of, std::int64_t iteration, debug::ReductionGroup weight_group,
                    std::uint64_t number)
      : of_(of), iteration_(iteration), number_(number), weight_group_(std::move(weight_group)) {}

  bool is_of(const TensorHistory& of, std::int64_t iteration) const {
    return &of_ == &of && iteration_ == iteration;
  }
  std::uint64_t number() const { return number_; }

  // Sums of reads that a graph has made.
  void add(const RequestSet& set, Accumulators sums);

  // True if another read counts: for a weight the first one does, for others all add up.
  bool takes_reads();

  // Further properties of a read.
  struct Read {
    ops::StatisticsCasts casts = {};       // one for each cast of the set
    std::vector<BlockCopy> copies = {};    // one for each block cast
    ScaleOrigin scale = {};                // the scale that the set asks about, if it does
    std::vector<at::Tensor> defined = {};  // GuardedStatistic::add, one for each; none: x is empty
  };
  void read(const at::Tensor& x, const RequestSet& set, const Read& read);
  // sums: what attention_statistics returned.
  void read_scores(const RequestSet& set, at::Tensor sums);

  // Appends the sums of what was read, for the current stream; they do not change any more.
  void give_sums(std::vector<at::Tensor>& sums) const;

  // This rank's, of those sums on the host. Iterations of a tensor in their order.
  Totals totals(HostSums& sums, DefinedStatistics& defined) const;

  // Each rank of the group reads the same: with others it counts once.
  void set_replicas(debug::ReductionGroup group);

  // True if another rank of the group brings what was read here as well.
  bool is_brought_by_another(const c10d::ProcessGroup& group, const Reductions& reductions) const;

  // Sets the addresses of the rows.
  void address(const RowAddresses& addresses);

  // Appends one row for each statistic that was asked for, then the counters that were not.
  void append_rows(const Totals& totals, std::string_view group, SeriesTable& series,
                   std::vector<Row>& rows) const;

  bool is_weight() const { return of_.tensor == TensorName::weight; }

  // The ranks that share the sums; null: none do.
  debug::ReductionGroup group(const Reductions& reductions) const;

  // True if sums wait for a later step, since no sums are shared in this one.
  bool waits(const Reductions& reductions) const;

  // Hash of layer, tensor and iteration; the same on every rank and every machine.
  std::uint64_t hash() const;

 private:
  // The reads with equal requests on one stream: streams that add to one another's sums would have
  // to wait for each other. They differ within an iteration only where some micro-batches ran under
  // a recipe and others did not, or on streams of their own.
  struct Part {
    RequestSet set;
    c10::Stream stream;
    // Where the set asks about a scale, which may be another in each read, its sums are nothing and
    // the reads are kept apart.
    Accumulators to;
    std::vector<at::Tensor> reads = {};    // statistics_words(casts) each
    std::vector<ScaleOrigin> scales = {};  // one a read
    std::vector<at::Tensor> scores = {};   // attention_statistics, one a read
    // For each defined statistic the sums of its reads, which the step merges.
    std::vector<std::vector<at::Tensor>> defined = {};
  };

  bool is_full() const;
  Part& part_for(const RequestSet& set, const at::Device& device);
  void add_part(const Part& part, HostSums& sums, Totals& totals) const;
  void add_defined(const Part& part, HostSums& sums, DefinedStatistics& defined,
                   Totals& totals) const;

  const std::string& layer_name() const { return *of_.layer_name; }

  TensorHistory& of_;
  const std::int64_t iteration_;
  const std::uint64_t number_;
  const debug::ReductionGroup weight_group_;
  std::mutex mutex_;  // over what follows
  debug::ReductionGroup replicas_;
  std::vector<Part> parts_;
  RowAddresses addresses_;
};

// Activations and weights are cut into blocks along both dimensions: fprop takes the one
// orientation, the backward's GEMMs the other.
bool has_both_orientations(TensorName tensor);

}  // namespace telens::features
