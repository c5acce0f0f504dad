// A piece of work that the queue hands to the writer's thread: rows in the order of pushing per
// table, and the names that they are the first to use.
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
#include "record/rows/row_lists.h"
#include "record/run_reader.h"
#include "record/run_schema.h"
#include "record/run_writer.h"
#include "record/table_writer.h"

namespace telens::record {

// Names lie in chunks of so many bytes, which are never compressed.
inline constexpr std::size_t kNameChunkBytes = 4096;

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

  std::uint64_t recorded() const;            // how many rows a session handed over
  std::uint64_t bytes() const;               // at the most, in a file
  void drop_first(const RowCounts& counts);  // bins go with their records
  void clear();

  std::array<std::vector<std::string>, kDictionaries> names;  // by dictionary

 private:
  RowLists<BatchRows> rows_;
};

// Writes one segment of a run: one HDF5 file with all its tables. Used by one thread; throws
// DiskFull before anything is written, after which finish() is allowed, or another RecordError for
// a write that failed, after which only abandon() and its destruction are.

// The attributes of a file, besides the run's own.
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
  // Creates the file `path`, to be written in one go and read when it is finished.
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
  // True if the file still lies where it was created; true if it is removed altogether.
  bool is_in_place() const { return space_.is_at(path_); }
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
  std::vector<char> stored_;  // rows as they lie on disk
  RowCounts written_;
};

// The bytes of the rank's files in a run's folder.
std::uint64_t bytes_of_segments(const std::string& folder, int rank);

}  // namespace telens::record
