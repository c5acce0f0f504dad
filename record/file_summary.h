// A file of a run as its reader keeps it while the file is closed.
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
#include "record/rows/row_lists.h"
#include "record/run_reader.h"
#include "record/run_schema.h"

namespace telens::record {

// The small tables that most commands ask for, some of them twice: read on opening and kept, so
// that they cost a run of many ranks no further opening of each file.
using KeptRows = std::tuple<Scalar, Event>;

template <typename Row>
inline constexpr bool kIsKept = std::is_same_v<Row, Scalar> || std::is_same_v<Row, Event>;

struct FileSummary {
  Segment about;
  std::uint64_t rows = 0;               // how many records, damaged ones too
  std::int64_t first_loss = INT64_MAX;  // the first iteration with one
  std::array<std::vector<std::string>, kDictionaries> names;
  std::optional<RowLists<KeptRows>> kept;  // with the file's own ids; nothing: too many, or unread
  std::optional<PackedImage> records;      // nothing: not asked for, too large, or still written
  std::vector<DamagedRows> damage;         // as far as it was come upon
  std::optional<FileState> checked;        // the state in which its layout was checked
};

struct SummaryOptions {
  FindDamage find_damage = FindDamage::where_read;
  std::size_t most_kept_rows = 0;
  std::size_t most_record_bytes = 0;  // 0: none are kept
};

// Throws RecordError, which names the file.
FileSummary summarize(const std::string& path, const SummaryOptions& options);

// For another process of this program.
std::vector<char> pack(const FileSummary& summary);
// Throws RecordError: these are not all bytes of a summary.
FileSummary unpack(std::span<const char> bytes);

// Processes that look at the files of a run for the one that reads it. HDF5 works on one core of a
// process, however many threads ask it.

class SummaryProcesses {
 public:
  // Without any where the machine has one core, or gives no process. File i falls to process
  // i % count.
  SummaryProcesses(const std::vector<std::string>& files, const SummaryOptions& options,
                   std::size_t count);
  ~SummaryProcesses();
  SummaryProcesses(const SummaryProcesses&) = delete;
  SummaryProcesses& operator=(const SummaryProcesses&) = delete;

  // The next file's; ask for all of them, in their order. Nothing: none has been made of it, for
  // whatever reason, and the caller has to look itself.
  std::optional<FileSummary> take();

 private:
  struct Process {
    pid_t id = -1;
    int results = -1;  // a pipe; -1: nothing more comes of it
  };
  void start(const std::vector<std::string>& files, const SummaryOptions& options,
             std::size_t first, std::size_t step);
  static std::optional<std::vector<char>> read_result(Process& process);

  std::vector<Process> processes_;
  std::size_t next_ = 0;
};

// As many as help with so many files.
std::size_t count_summary_processes(std::size_t files);

}  // namespace telens::record
