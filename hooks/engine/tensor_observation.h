// All reads of one tensor in one iteration, and the rows computed from them. No LibTorch.
#pragma once

#include <cstdint>
#include <mutex>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "hooks/engine/layer_reads.h"
#include "hooks/engine/statistics_totals.h"
#include "hooks/engine/tensor_accumulators.h"
#include "hooks/rank_group.h"
#include "hooks/sink.h"
#include "hooks/statistics/requests.h"
#include "hooks/stream_order.h"

namespace telens::features {

// Sums that have been copied to the host, one tensor after the other.
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

// The sums of one tensor of one layer in one iteration. Sums stay on the tensor's device.
class TensorObservation {
 public:
  // `of` outlives this object. weight_group: the tensor-parallel group of a weight; null if there
  // is none. number: observations are numbered in the order of their first reads.
  TensorObservation(TensorHistory& of, std::int64_t iteration, RankGroupPtr weight_group,
                    std::uint64_t number)
      : of_(of), iteration_(iteration), number_(number), weight_group_(std::move(weight_group)) {}

  bool is_of(const TensorHistory& of, std::int64_t iteration) const {
    return &of_ == &of && iteration_ == iteration;
  }
  std::uint64_t number() const { return number_; }

  // Adds the sums of reads that a graph has made.
  void add(const RequestSet& set, Accumulators sums);

  // Returns true if another read counts: for a weight only the first one does; for other tensors
  // all reads add up.
  bool takes_reads();

  // Further properties of a read.
  struct Read {
    tensor_ops::StatisticsCasts casts = {};  // one for each cast of the set
    std::vector<BlockCopy> copies = {};      // one for each block cast
    ScaleOrigin scale = {};                  // the scale that the set asks about, if it does
    std::vector<TensorHandle> defined =
        {};  // GuardedStatistic::add, one for each; none: x is empty
  };
  void read(const TensorHandle& x, const RequestSet& set, const Read& read);
  // sums: what attention_statistics returned.
  void read_scores(const RequestSet& set, TensorHandle sums);

  // Appends the sums of all reads, ready for the current stream. They do not change any more.
  void give_sums(std::vector<TensorHandle>& sums) const;

  // Returns this rank's totals from those sums on the host. Called in the order of a tensor's
  // iterations.
  Totals totals(HostSums& sums, DefinedStatistics& defined) const;

  // Notes that each rank of the group reads the same tensor, which counts once.
  void set_replicas(RankGroupPtr group);

  // Returns true if another rank of the group contributes the same reads.
  bool is_brought_by_another(const RankGroup& group, const Reductions& reductions) const;

  // Sets the addresses of the rows.
  void address(const RowAddresses& addresses);

  // Appends a row for each requested statistic, then the counters that were not requested.
  void append_rows(const Totals& totals, std::string_view group, SeriesTable& series,
                   std::vector<Row>& rows) const;

  bool is_weight() const { return of_.tensor == TensorName::weight; }

  // Returns the ranks that share the sums; null if none do.
  RankGroupPtr group(const Reductions& reductions) const;

  // Returns true if the sums wait for a later step, because this step shares none.
  bool waits(const Reductions& reductions) const;

  // Hash of layer, tensor and iteration; the same on every rank and every machine.
  std::uint64_t hash() const;

 private:
  // The reads with equal requests on one stream; streams that add to the same sums would have to
  // wait for each other. An iteration has several parts only if some micro-batches ran under a
  // recipe and others did not, or on different streams.
  struct Part {
    RequestSet set;
    StreamHandle stream;
    // If the set requests statistics of a scale, which may differ in each read, these sums stay
    // neutral and the reads are stored separately.
    Accumulators to;
    std::vector<TensorHandle> reads = {};   // statistics_words(casts) each
    std::vector<ScaleOrigin> scales = {};   // one a read
    std::vector<TensorHandle> scores = {};  // attention_statistics, one a read
    // For each defined statistic, the sums of its reads, which the step merges.
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

// Returns true for activations and weights, which are split into blocks along both dimensions:
// fprop reads one orientation, the backward's GEMMs the other.
bool has_both_orientations(TensorName tensor);

}  // namespace telens::features
