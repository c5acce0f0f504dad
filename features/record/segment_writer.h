// Writes one segment of a run: one HDF5 file with all its tables. Used by one thread; throws
// DiskFull before anything is written, after which finish() is allowed, or another RecordError for
// a write that failed, after which only abandon() and its destruction are.
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
#include "features/record/run_reader.h"
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
  std::uint64_t bytes() const;             // at the most, in a file
  void drop_first(const RowCounts& rows);  // bins go with their records
  void clear();
};

// What a file says about itself, besides the run's own words.
struct SegmentContext {
  double start_time = 0;  // seconds since 1970
  bool continues = false;
  std::optional<Thinned> thinned;
};

class SegmentWriter {
 public:
  // Creates the file under a temporary name in `folder`, begins SWMR, and gives it the name of the
  // first free segment of the rank. `others` are the bytes of max_size that the rank's other files
  // take, or will.
  SegmentWriter(const RunOptions& options, const std::string& folder, std::uint64_t others,
                bool continues = false);
  // Creates the file `path`, to be written in one go: nobody reads it before it is finished.
  SegmentWriter(const RunOptions& options, const std::string& path, const SegmentContext& context);
  ~SegmentWriter();

  // On disk when it returns; of a file that is written in one go, when finish() does.
  void write(const Batch& batch);
  // The last call: end() and close().
  void finish(End end, const std::string& reason);
  void finish(const RunEnd& end);
  // All rows are there, and how the run ended. Only lost() and close() may follow.
  void end(const RunEnd& end);
  void lost(std::uint64_t rows, std::int64_t first_iteration);  // that came after the end
  void close();

  // Closes the file without writing any more: it stays as the last flush has left it, like that of
  // a killed process. What HDF5 still holds would be written out of order.
  void abandon();

  const std::string& path() const { return path_; }
  std::uint64_t file_size() const { return space_.file_size(); }
  const RowCounts& written() const { return written_; }  // by all calls of write()
  // Whether the file still lies where it was created, and is not removed altogether.
  bool is_in_place() const { return space_.is_at(path_); }
  bool is_removed() const { return space_.is_removed(); }

 private:
  void write_context(const RunOptions& options, const SegmentContext& context);
  void create_tables(Tail tail);
  void flush(PackedTable& table);
  static void flush(AppendTable& table) { table.flush(); }
  void write_names(const Batch& batch);
  void write_records(std::span<const Record> records);
  void close_tables();
  bool take_name(const std::string& temporary);

  std::string path_;
  bool in_one_go_ = false;
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
  RowCounts written_;
};

// Of the rank's files in a run's folder.
std::uint64_t bytes_of_segments(const std::string& folder, int rank);

}  // namespace telens::record
