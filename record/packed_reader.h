// Work that several threads share.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <functional>
#include <mutex>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "record/hdf5.h"
#include "record/packed_rows.h"
#include "record/run_schema.h"

namespace telens::record {

inline constexpr std::size_t kMostThreads = 4;  // beyond that, reading chunks is what limits

// Calls work() on this thread and on others, as many as there are cores and parts of the work;
// each call takes parts until there are none. Throws what one of them has thrown.
template <typename Work>
void run_in_threads(std::size_t parts, const Work& work) {
  const std::size_t cores = std::max<std::size_t>(1, std::thread::hardware_concurrency());
  const std::size_t threads = std::min({cores, kMostThreads, parts});
  std::exception_ptr failure;
  std::mutex failure_mutex;
  const auto work_safely = [&] {
    try {
      work();
    } catch (...) {
      const std::scoped_lock lock(failure_mutex);
      failure = std::current_exception();
    }
  };
  {
    std::vector<std::jthread> helpers;
    for (std::size_t i = 1; i < threads; ++i) helpers.emplace_back(work_safely);
    work_safely();
  }
  if (failure) std::rethrow_exception(failure);
}

// Reads a PackedTable of records quickly, also while it is being written: chunks are decompressed
// here, on several threads, and only the columns that a filter needs are put together.

// Selects records by the ids of one file. By default all are kept.
struct RecordFilter {
  struct Ids {
    std::vector<char> keep;  // by id; ids beyond its end are not kept
    bool all = true;
    bool none = false;  // keeps kNoName
    bool accepts(std::int32_t id) const {
      if (id == kNoName) return all || none;
      return all || (static_cast<std::size_t>(id) < keep.size() && keep[id] != 0);
    }
  };
  Ids layer, tensor, gemm, statistic;
  std::int64_t first_iteration = INT64_MIN;
  std::int64_t last_iteration = INT64_MAX;

  // By the iteration and by those of the names that rows of this kind have.
  template <typename Row>
  bool accepts(const Row& row) const {
    bool accepted = row.iteration >= first_iteration && row.iteration <= last_iteration;
    for_each_name<Row>([&](const auto& column) {
      const Ids* ids = find_ids(*column.dictionary);
      accepted = accepted && (ids == nullptr || ids->accepts(row.*column.member));
    });
    return accepted;
  }
  // nullptr: names of this kind are not looked at.
  const Ids* find_ids(Dictionary dictionary) const {
    switch (dictionary) {
      case Dictionary::layer:
        return &layer;
      case Dictionary::tensor:
        return &tensor;
      case Dictionary::gemm:
        return &gemm;
      case Dictionary::statistic:
        return &statistic;
      default:
        return nullptr;
    }
  }
};

class PackedReader {
 public:
  // A snapshot of the table at this moment. Throws RecordError.
  PackedReader(hid_t file, Checksums checksums, DamageLog& damage, Growth growth)
      : table_(file, checksums, damage, growth) {}
  PackedReader(PackedImage image, DamageLog& damage) : table_(std::move(image), damage) {}

  std::uint64_t rows() const { return table_.rows(); }
  void keep_first(std::uint64_t rows) { table_.keep_first(rows); }  // as if there were no others
  // Matching records in their order, in pieces. `progress` hears how many rows have been looked at.
  void read(const RecordFilter& filter, const std::function<void(std::span<const Record>)>& use,
            const std::function<void(std::uint64_t)>& progress = {}) const;

  const PackedRows<Record>& table() const { return table_; }

 private:
  std::vector<Record> matching(std::uint64_t chunk, const RecordFilter& filter,
                               class ChunkDecoder& decoder) const;

  PackedRows<Record> table_;
};

// Reads the histograms of one file: joins bins with their records.

// Sixteen times those of a histogram over all codes of 16 bits. What has more is no histogram.
inline constexpr std::size_t kMostBins = 1 << 20;

using UseStoredHistogram =
    std::function<void(const Record& record, std::span<const HistogramBin> bins)>;

// Those whose record the filter keeps, in the order of writing. One of which a killed process has
// not written all bins is left out.
void read_histograms(const PackedRows<BinRow>& bins, const PackedReader& records,
                     const RecordFilter& filter, const UseStoredHistogram& use);

}  // namespace telens::record
