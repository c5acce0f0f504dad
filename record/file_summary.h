// Summaries of run files, which a reader keeps while the files are closed.
#pragma once

#include <sys/types.h>
#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <tuple>
#include <type_traits>
#include <vector>

#include "record/damage.h"
#include "record/hdf5_guard.h"
#include "record/packed_rows.h"
#include "record/rows/table.h"
#include "record/run_reader.h"
#include "record/run_schema.h"

namespace telens::record {

// Small tables that most commands read, some of them twice. They are kept in memory, so that the
// files of a run with many ranks need not be opened again.
using KeptRows = std::tuple<Scalar, Event>;

template <typename Row>
inline constexpr bool kIsKept = std::is_same_v<Row, Scalar> || std::is_same_v<Row, Event>;

struct FileSummary {
  Segment about;
  std::uint64_t rows = 0;               // number of records, including damaged ones
  std::int64_t first_loss = INT64_MAX;  // first iteration with a loss
  std::array<std::vector<std::string>, kDictionaries> names;
  // ids are the file's; nullopt if too many or not readable
  std::optional<RowLists<KeptRows>> kept;
  std::optional<PackedImage> records;  // nullopt if not requested, too large, or the file is live
  std::vector<DamagedRows> damage;     // found so far
  std::optional<FileState> checked;    // the state in which the layout was checked
};

struct SummaryOptions {
  FindDamage find_damage = FindDamage::where_read;
  std::size_t max_kept_rows = 0;
  std::size_t max_record_bytes = 0;  // keep no records if 0
};

// Throws RecordError with the file's name.
FileSummary summarize(const std::string& path, const SummaryOptions& options);

// Serialize a summary for another process of this program.
std::vector<char> pack(const FileSummary& summary);
// Throws RecordError if `bytes` is not a complete summary.
FileSummary unpack(std::span<const char> bytes);

// Child processes that summarize the files of a run in parallel. HDF5 uses only one core of a
// process, regardless of the number of threads.

class SummaryProcesses {
 public:
  // Starts `count` processes; file i is assigned to process i % count. Starts none if the machine
  // has one core or cannot fork.
  SummaryProcesses(const std::vector<std::string>& files, const SummaryOptions& options,
                   std::size_t count);
  ~SummaryProcesses();
  SummaryProcesses(const SummaryProcesses&) = delete;
  SummaryProcesses& operator=(const SummaryProcesses&) = delete;

  // Returns the summary of the next file, in order. Returns nullopt if the process failed for any
  // reason; the caller must then read the file itself.
  std::optional<FileSummary> take();

 private:
  struct Process {
    pid_t id = -1;
    int results = -1;  // a pipe; -1 if no more results will arrive
  };
  void start(const std::vector<std::string>& files, const SummaryOptions& options,
             std::size_t first, std::size_t step);
  static std::optional<std::vector<char>> read_result(Process& process);

  std::vector<Process> processes_;
  std::size_t next_ = 0;
};

// Returns the number of processes that is worthwhile for `files` files.
std::size_t count_summary_processes(std::size_t files);

}  // namespace telens::record
