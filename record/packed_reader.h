// Reads the records and histograms of a file: decompresses chunks on several threads and decodes
// only the columns that a filter needs. Works while the file is written.
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

// more threads gain nothing: reading the chunks limits
inline constexpr std::size_t kMaxThreads = 4;

// Calls work() on this thread and on up to kMaxThreads - 1 others; each call must take parts of the
// work until none are left. Rethrows an exception from any call.
template <typename Work>
void run_in_threads(std::size_t parts, const Work& work) {
  const std::size_t cores = std::max<std::size_t>(1, std::thread::hardware_concurrency());
  const std::size_t threads = std::min({cores, kMaxThreads, parts});
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

// Selects records by iteration and by the ids of a file. The default selects all.
struct RecordFilter {
  struct Ids {
    std::vector<char> keep;  // indexed by id; ids beyond the end are rejected
    bool all = true;
    bool none = false;  // accepts kNoName
    bool accepts(std::int32_t id) const {
      if (id == kNoName) return all || none;
      return all || (static_cast<std::size_t>(id) < keep.size() && keep[id] != 0);
    }
  };
  Ids layer, tensor, gemm, statistic;
  std::int64_t first_iteration = INT64_MIN;
  std::int64_t last_iteration = INT64_MAX;

  // Checks the iteration and the names that rows of this type have.
  template <typename Row>
  bool accepts(const Row& row) const {
    bool accepted = row.iteration >= first_iteration && row.iteration <= last_iteration;
    for_each_name<Row>([&](const auto& column) {
      const Ids* ids = find_ids(*column.dictionary);
      accepted = accepted && (ids == nullptr || ids->accepts(row.*column.member));
    });
    return accepted;
  }
  // Returns nullptr if the filter ignores names of this kind.
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
  // Takes a snapshot of the table. Throws RecordError.
  PackedReader(hid_t file, Checksums checksums, DamageLog& damage, Growth growth)
      : table_(file, checksums, damage, growth) {}
  PackedReader(PackedImage image, DamageLog& damage) : table_(std::move(image), damage) {}

  std::uint64_t rows() const { return table_.rows(); }
  void truncate(std::uint64_t rows) { table_.truncate(rows); }  // hides all later rows
  // Calls use() with matching records in order, in pieces. Calls progress() with the number of
  // records examined.
  void read(const RecordFilter& filter, const std::function<void(std::span<const Record>)>& use,
            const std::function<void(std::uint64_t)>& progress = {}) const;

  const PackedRows<Record>& table() const { return table_; }

 private:
  std::vector<Record> matching(std::uint64_t chunk, const RecordFilter& filter,
                               class ChunkDecoder& decoder) const;

  PackedRows<Record> table_;
};

// Sixteen times the bins of a histogram over all 16-bit codes. Records with more are rejected.
inline constexpr std::size_t kMaxBins = 1 << 20;

using UseStoredHistogram =
    std::function<void(const Record& record, std::span<const HistogramBin> bins)>;

// Calls use() for each histogram whose record the filter accepts, in the order of writing. Skips a
// histogram if a killed process wrote only some of its bins.
void read_histograms(const PackedRows<BinRow>& bins, const PackedReader& records,
                     const RecordFilter& filter, const UseStoredHistogram& use);

}  // namespace telens::record
