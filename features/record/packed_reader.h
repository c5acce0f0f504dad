// Reads a PackedTable of records quickly, also while it is being written: chunks are decompressed
// here, on several threads, and only the columns that a filter needs are put together.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "features/record/hdf5.h"
#include "features/record/packed_rows.h"
#include "features/record/run_rows.h"

namespace telens::record {

// Which records to keep, by the ids of one file. By default all are kept.
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

  bool accepts(const StoredRecord& record) const {
    return record.iteration >= first_iteration && record.iteration <= last_iteration &&
           layer.accepts(record.layer) && statistic.accepts(record.statistic) &&
           tensor.accepts(record.tensor) && gemm.accepts(record.gemm);
  }
};

class PackedReader {
 public:
  // A snapshot of the table at this moment. Throws RecordError.
  PackedReader(hid_t file, const std::string& name, Checksums checksums, DamageLog& damage)
      : table_(file, name, checksums, damage) {}

  std::uint64_t rows() const { return table_.rows(); }
  void keep_first(std::uint64_t rows) { table_.keep_first(rows); }  // as if there were no others
  // Matching records in their order, in pieces. `progress` hears how many rows have been looked at.
  void read(const RecordFilter& filter,
            const std::function<void(std::span<const StoredRecord>)>& use,
            const std::function<void(std::uint64_t)>& progress = {}) const;
  // Of the undamaged ones, if there are any.
  std::optional<StoredRecord> first() const;
  std::optional<StoredRecord> last() const;

  const PackedRows<StoredRecord>& table() const { return table_; }

 private:
  std::vector<StoredRecord> matching(std::uint64_t chunk, const RecordFilter& filter,
                                     class ChunkDecoder& decoder) const;

  PackedRows<StoredRecord> table_;
};

}  // namespace telens::record
