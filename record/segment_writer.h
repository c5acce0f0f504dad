// Batch: rows on their way from the queue to a file. SegmentWriter: writes one file of a run.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <tuple>
#include <type_traits>
#include <vector>

#include "record/disk_space.h"
#include "record/rows/table.h"
#include "record/run_reader.h"
#include "record/run_schema.h"
#include "record/run_writer.h"
#include "record/table_writer.h"

namespace telens::record {

// The size of a chunk of names. Chunks of names are not compressed.
inline constexpr std::size_t kNameChunkBytes = 4096;

// The rows of each table in the order of push(), and the names that these rows use first.
// BinRow::record counts from the first record of the batch.
class Batch {
 public:
  template <typename Row>
  std::vector<Row>& of() {
    return rows_.of<Row>();
  }
  template <typename Row>
  const std::vector<Row>& of() const {
    return rows_.of<Row>();
  }
  template <typename Use>
  void for_each_table(Use use) const {
    rows_.for_each(use);
  }

  std::uint64_t recorded() const;            // rows that a session recorded
  std::uint64_t bytes() const;               // an upper bound of the bytes in a file
  void drop_first(const RowCounts& counts);  // removes the bins of removed records
  void clear();

  std::array<std::vector<std::string>, kDictionaries> names;  // indexed by dictionary

 private:
  RowLists<BatchRows> rows_;
};

// Writes one segment: an HDF5 file with all tables. For one thread. Throws DiskFull before anything
// is written; finish() is then still allowed. Throws another RecordError if a write fails; only
// abandon() and the destructor are then allowed.

// Attributes of a file, not shared by the whole run.
struct SegmentContext {
  double start_time = 0;  // seconds since 1970
  bool continues = false;
  std::optional<Thinned> thinned;
};

class SegmentWriter {
 public:
  // Creates the file under a temporary name in `folder`, begins SWMR, and renames the file to the
  // first free segment of the rank. `others` is the part of max_size that other files of the rank
  // use or will use.
  SegmentWriter(const RunOptions& options, const std::string& folder, std::uint64_t others,
                bool continues = false);
  // Creates the file `path`, which is written at once and read after finish().
  SegmentWriter(const RunOptions& options, const std::string& path, const SegmentContext& context);
  ~SegmentWriter();

  // The rows are on disk on return. In a file that is written at once they are on disk after
  // finish().
  void write(const Batch& batch);
  // Calls end() and close(). Must be the last call.
  void finish(End end, const std::string& reason);
  void finish(const RunEnd& end);
  // Writes all pending rows and how the run ended. Only lost() and close() may follow.
  void end(const RunEnd& end);
  // counts rows that arrived after the end
  void lost(std::uint64_t rows, std::int64_t first_iteration);
  void close();

  // Closes the file without further writes: it stays as the last flush left it, like the file of a
  // killed process. HDF5 would write its cached data in the wrong order.
  void abandon();

  const std::string& path() const { return path_; }
  std::uint64_t file_size() const { return space_.file_size(); }
  const RowCounts& written() const { return written_; }  // by all calls of write()
  // is_in_place: the file still has its name. is_removed: the file was unlinked.
  bool is_in_place() const { return space_.has_name(path_); }
  bool is_removed() const { return space_.is_removed(); }

 private:
  void write_context(const RunOptions& options, const SegmentContext& context);
  template <typename Row>
  struct OpenTable {
    static constexpr bool kPacked = Row::kTable.storage == Storage::packed;
    std::optional<std::conditional_t<kPacked, PackedTable, AppendTable>> table;
  };
  template <typename Rows>
  struct OpenTables;
  template <typename... Rows>
  struct OpenTables<std::tuple<Rows...>> {
    using Type = std::tuple<OpenTable<Rows>...>;
  };

  template <typename Row>
  auto& table() {
    return std::get<OpenTable<Row>>(tables_).table;
  }
  void create_tables(Tail tail);
  void write_names(const Batch& batch);
  template <typename Row>
  void write_rows(std::span<const Row> rows);
  template <typename Row>
  void append(std::span<const Row> rows);
  void flush(PackedTable& table) {
    if (!in_one_go_) table.flush();
  }
  static void flush(AppendTable& table) {
    const hdf5::Lock lock;
    table.flush();
  }
  void close_tables();
  bool take_name(const std::string& temporary);

  std::string path_;
  bool in_one_go_ = false;
  hdf5::Handle file_;
  DiskSpace space_;
  std::vector<AppendTable> names_;
  OpenTables<FileRows>::Type tables_;
  std::vector<char> stored_;  // rows in their stored form
  RowCounts written_;
};

// Returns the total size of the rank's files in a run's folder.
std::uint64_t bytes_of_segments(const std::string& folder, int rank);

}  // namespace telens::record
