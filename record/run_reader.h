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
#include "record/damage.h"
#include "record/run_schema.h"
#include "record/run_writer.h"

namespace telens::record {

struct RunEnd {
  double time = 0;  // seconds since 1970
  End state = End::clean;
  std::string reason;
};

// Iterations that max_size has cost a file: of so many the records of some are left.
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
  std::int64_t first_iteration = 0;  // the records'; meaningless without any
  std::int64_t last_iteration = 0;
  std::uint64_t dropped = 0;  // rows that the full queue refused, or that went with a removed file
  std::uint64_t lost = 0;     // rows that came after a disk took no more
  bool continues = false;     // the file before it, in the same process
  std::optional<Thinned> thinned;
  std::int64_t superseded_from = INT64_MAX;  // from here on a resumed segment repeats it
};

// Rows of one file that are not what was written. They are left out of all that is read.
struct Damage {
  std::string path;
  DamagedRows rows;
};

// Selects records. Ids are the reader's own, see names(), and kNoName; nothing set: all.
struct RecordQuery {
  using Ids = std::optional<std::vector<std::int32_t>>;
  Ids layers, tensors, gemms, statistics;
  std::int64_t first_iteration = INT64_MIN;
  std::int64_t last_iteration = INT64_MAX;  // inclusive
  std::optional<int> rank;
};

// Rows that are read into memory at once take a quarter of a gigabyte at the most: a file of one
// megabyte may hold so many equal rows that there is no memory for them.
inline constexpr std::size_t kMostLines = 1 << 22;

// When damage is looked for: where something is read, or everywhere on opening, which reads
// everything once. Of many files that is quicker than RunReader::find_damage() later, which opens
// each of them again.
enum class FindDamage : std::uint8_t { where_read, on_opening };

// Where the files of a run are looked at. Many of them take processes half of the time on two
// cores; they are forks of this one, which a program with threads of its own may not want.
enum class Opening : std::uint8_t { in_this_process, in_processes };

class TELENS_EXPORT RunReader {
 public:
  using Warn = std::function<void(const std::string& line)>;
  // A run's folder, one of its files, or a log_dir (or its telens folder) that holds one run.
  // With `warn` a run of several files is read without those that cannot be read at all, as long as
  // one can: it is called once for each, with one line that names the file and the cause. It also
  // hears of damaged rows, when they are first come upon: a line that says which.
  explicit RunReader(const std::string& path, Warn warn = {},
                     FindDamage find_damage = FindDamage::where_read,
                     Opening opening = Opening::in_this_process);
  ~RunReader();
  RunReader(RunReader&&) noexcept;

  const std::vector<Segment>& segments() const;
  // The union of the dictionaries of all files: an id of this reader is an index in it.
  const std::vector<std::string>& names(Dictionary dictionary) const;
  std::string config_text() const;  // the first segment's
  std::vector<std::pair<std::string, std::string>> environment() const;
  std::uint64_t record_count() const;  // as read() gives them: those that are repeated once

  // The damage of all files, as far as it was come upon; find_damage() reads everything.
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
  // Calls the given function for the rows of its table, in order of rank, segment and writing; of
  // the query, for the names that rows of this kind have. Rows that a resumed segment repeats come
  // once, or, where their struct can say so, marked as superseded.
  void read_rows(const RecordQuery& query, const UseRow& use) const;
  // The same as a list. Throws RecordError for more than kMostLines rows of a compressed table.
  template <typename Row>
  std::vector<Row> rows(const RecordQuery& query = {}) const;
  std::vector<Scalar> scalars() const { return rows<Scalar>(); }
  std::vector<Event> events() const { return rows<Event>(); }

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

template <typename Row>
std::vector<Row> RunReader::rows(const RecordQuery& query) const {
  std::vector<Row> rows;
  read_rows(query, [&](const Row& row) {
    if (Row::kTable.storage == Storage::packed && rows.size() == kMostLines) {
      raise<RecordError>("the {}: more than {} rows; ask for fewer of them", Row::kTable.name,
                         kMostLines);
    }
    rows.push_back(row);
  });
  return rows;
}

// The files that RunReader would read for `path`; repair works on the same ones.
TELENS_EXPORT std::vector<std::string> run_files(const std::string& path);

// The runs of one log_dir: every start of a training makes a run of its own there.

// A run among others.
struct RunEntry {
  std::string folder;
  double start_time = 0;          // its last start, in seconds since 1970
  std::optional<Segment> latest;  // the lowest rank's; nothing if it cannot be read
  std::string problem;            // then: why

  // The last part of its folder's path.
  std::string id() const;
};

// The runs of a log_dir (or of its telens folder) that holds several, newest first; none for any
// other path. The newest is the one that was started or resumed last, not the last by name.
TELENS_EXPORT std::vector<RunEntry> runs_beside(const std::string& path);

}  // namespace telens::record
