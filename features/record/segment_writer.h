// Writes one segment of a run: one HDF5 file with all its tables. Used by one thread; throws
// RecordError, after which only its destruction is allowed.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "features/record/append_table.h"
#include "features/record/disk_space.h"
#include "features/record/packed_table.h"
#include "features/record/run_rows.h"
#include "features/record/run_schema.h"
#include "features/record/run_writer.h"

namespace telens::record {

// What the queue hands to the writer's thread in one piece, in the order of pushing per table.
struct Batch {
  std::array<std::vector<std::string>, kDictionaries> names;
  std::vector<Record> records;
  std::vector<StoredBin> bins;  // `record` counts from the first record of the batch
  std::vector<StoredScalar> scalars;
  std::vector<StoredLedgerRow> ledger;
  std::vector<StoredBlock> blocks;
  std::vector<StoredEvent> events;
  std::vector<StoredDrop> drops;

  std::uint64_t rows() const {
    return records.size() + bins.size() + scalars.size() + ledger.size() + blocks.size() +
           events.size();
  }
  void clear();
};

class SegmentWriter {
 public:
  // Creates the file under a temporary name in `folder`, begins SWMR, and gives it the name of the
  // first free segment of the rank.
  SegmentWriter(const RunOptions& options, const std::string& folder);
  ~SegmentWriter();

  void write(const Batch& batch);                   // on disk when it returns
  void finish(End end, const std::string& reason);  // the last call

  const std::string& path() const { return path_; }
  std::uint64_t file_size() const { return space_.file_size(); }

 private:
  void write_context(const RunOptions& options);
  void create_tables();
  void write_names(const Batch& batch);
  void write_records(std::span<const Record> records);
  void close_tables();
  bool take_name(const std::string& temporary);

  std::string path_;
  hdf5::Handle file_;
  DiskSpace space_;
  std::vector<AppendTable> names_;
  std::optional<PackedTable> records_;
  std::optional<PackedTable> bins_;
  std::optional<AppendTable> scalars_;
  std::optional<PackedTable> ledger_;
  std::optional<PackedTable> blocks_;
  std::optional<AppendTable> events_;
  std::optional<AppendTable> drops_;
  std::optional<AppendTable> end_;
  std::vector<StoredRecord> stored_;
};

}  // namespace telens::record
