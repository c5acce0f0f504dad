// Reads a run: joins the files of its ranks and segments, while it is written, after it ended, and
// after its process was killed. What it tells is what there was when it was constructed; no file
// stays open in between. Throws RecordError with one line that names the file and the cause.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "core/base/error.h"
#include "features/record/damage.h"
#include "features/record/run_schema.h"
#include "features/record/run_writer.h"

namespace telens::record {

struct RunEnd {
  double time = 0;  // seconds since 1970
  End state = End::clean;
  std::string reason;
};

// What max_size has cost a file: of so many iterations the records of some are left.
struct Thinned {
  std::int64_t iterations_left = 0;
  std::int64_t iterations_seen = 0;
  std::int64_t records_seen = 0;
};

// One file of a run.
struct Segment {
  std::string path;
  int rank = 0;
  int segment = 0;
  int schema_version = 0;
  std::string telens_version;
  std::string run_id;
  int world_size = 1;
  double start_time = 0;  // seconds since 1970
  std::optional<RunEnd> end;
  bool live = false;  // a process is writing it now
  std::uint64_t bytes = 0;
  std::uint64_t records = 0;         // those that are known to be damaged are not among them
  std::int64_t first_iteration = 0;  // of the records; meaningless without any
  std::int64_t last_iteration = 0;
  std::uint64_t dropped = 0;  // rows that the full queue refused, or that went with a removed file
  std::uint64_t lost = 0;     // rows that came after a disk took no more
  bool continues = false;     // what the file before it holds, in the same process
  std::optional<Thinned> thinned;
  std::int64_t superseded_from = INT64_MAX;  // from here on a resumed segment repeats it
};

struct Scalar {
  int rank = 0;
  std::int64_t iteration = 0;
  std::int32_t name = kNoName;
  double value = 0;
};

struct Event {
  int rank = 0;
  double time = 0;
  std::int64_t iteration = 0;
  std::int32_t kind = kNoName;
  std::int32_t text = kNoName;
  std::int32_t layer = kNoName;
  bool superseded = false;  // of an iteration that a resumed segment repeats
};

// Of one GEMM; see docs/run_file.md for entries and details.
struct LedgerLine {
  int rank = 0;
  LedgerRow row;
};

// Of one block of a tensor.
struct BlockLine {
  int rank = 0;
  BlockRow row;
};

// Rows of one file that are not what was written. They are left out of all that is read.
struct Damage {
  std::string path;
  DamagedRows rows;
};

// Which records to read. Ids are the reader's own, see names(), and kNoName; nothing set: all.
struct RecordQuery {
  using Ids = std::optional<std::vector<std::int32_t>>;
  Ids layers, tensors, gemms, statistics;
  std::int64_t first_iteration = INT64_MIN;
  std::int64_t last_iteration = INT64_MAX;  // inclusive
  std::optional<int> rank;
};

// What is read into memory at once takes a quarter of a gigabyte at the most: a file of one
// megabyte may hold so many equal rows that there is no memory for them.
inline constexpr std::size_t kMostLines = 1 << 22;

class TELENS_EXPORT RunReader {
 public:
  using Warn = std::function<void(const std::string& line)>;
  // A run's folder, one of its files, or a log_dir (or its telens folder) that holds one run.
  // With `warn` a run of several files is read without those that cannot be read at all, as long as
  // one can: it is called once for each, with one line that names the file and the cause. It also
  // hears of damaged rows, when they are first come upon: a line that says which.
  explicit RunReader(const std::string& path, Warn warn = {});
  ~RunReader();
  RunReader(RunReader&&) noexcept;

  const std::vector<Segment>& segments() const;
  // The union of the dictionaries of all files: an id of this reader is an index in it.
  const std::vector<std::string>& names(Dictionary dictionary) const;
  std::string config_text() const;  // of the first segment
  std::vector<std::pair<std::string, std::string>> environment() const;
  std::uint64_t record_count() const;  // as read() gives them: those that are repeated once

  // Of all files, as far as it was come upon; find_damage() reads everything.
  std::vector<Damage> damage() const;
  void find_damage();

  using UseRecords = std::function<void(int rank, std::span<const Record>)>;
  using Progress = std::function<void(std::uint64_t records_looked_at)>;
  // In order of rank, segment and writing. Records that a resumed segment repeats come once.
  void read(const RecordQuery& query, const UseRecords& use, const Progress& progress = {}) const;
  using UseHistogram =
      std::function<void(int rank, const Record& record, std::span<const HistogramBin> bins)>;
  // The same for histograms; the record's value is the number of elements. One whose bins a killed
  // process has not all written is left out.
  void read_histograms(const RecordQuery& query, const UseHistogram& use) const;
  std::vector<Scalar> scalars() const;
  std::vector<Event> events() const;
  // In order of rank, segment and writing. Throws RecordError for more than kMostLines.
  std::vector<LedgerLine> ledger() const;
  std::vector<BlockLine> blocks(const RecordQuery& query = {}) const;
  // The same one by one, however many there are.
  using UseBlock = std::function<void(const BlockLine&)>;
  void blocks(const RecordQuery& query, const UseBlock& use) const;

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

// The files that RunReader would read for `path`; repair works on the same ones.
TELENS_EXPORT std::vector<std::string> run_files(const std::string& path);

}  // namespace telens::record
