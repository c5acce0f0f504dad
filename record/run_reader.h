// Reads a run: joins the files of its ranks and segments. Works while the run is written, after it
// ended, and after its process was killed. Shows the state at construction; files are open only
// during a call. Throws RecordError with one line that names the file and the cause.
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

// How far max_size thinned a file.
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
  std::string boot_id;    // of the kernel under which it was written; "" in older files
  std::optional<RunEnd> end;
  bool live = false;  // a process is writing the file
  std::uint64_t bytes = 0;
  std::uint64_t records = 0;         // without records that are known to be damaged
  std::int64_t first_iteration = 0;  // of the records; undefined if there are none
  std::int64_t last_iteration = 0;
  std::uint64_t dropped = 0;  // rows that found the queue full or were lost with a removed file
  std::uint64_t lost = 0;     // rows that arrived after the disk was full
  bool continues = false;     // continues the previous file of the same process
  std::optional<Thinned> thinned;
  std::int64_t superseded_from = INT64_MAX;  // first iteration that a resumed segment repeats
};

// Rows of a file that do not match their checksums. Readers skip them.
struct Damage {
  std::string path;
  DamagedRows rows;
};

// Selects records by ids of the reader (see names()) and kNoName. An unset field selects all.
struct RecordQuery {
  using Ids = std::optional<std::vector<std::int32_t>>;
  Ids layers, tensors, gemms, statistics;
  std::int64_t first_iteration = INT64_MIN;
  std::int64_t last_iteration = INT64_MAX;  // inclusive
  std::optional<int> rank;
};

// The maximum number of rows that are read into memory at once (256 MiB): a 1 MB file may hold more
// equal rows than fit in memory.
inline constexpr std::size_t kMaxLines = 1 << 22;

// When to search for damage: only in data that is read, or everywhere on opening, which reads all
// files once. For many files this is faster than a later find_damage(), which opens them again.
enum class FindDamage : std::uint8_t { where_read, on_opening };

// Where the files of a run are summarized. For many files, child processes take half of the time on
// two cores. They are forks, which a program with threads may not want.
enum class Opening : std::uint8_t { in_this_process, in_processes };

class TELENS_EXPORT RunReader {
 public:
  using Warn = std::function<void(const std::string& line)>;
  // `path` is a run's folder, one of its files, or a log_dir (or its telens folder) with one run.
  // If `warn` is set, files that cannot be read are skipped as long as one file is readable. `warn`
  // receives one line for each skipped file, with the cause, and one line for newly found damaged
  // rows.
  explicit RunReader(const std::string& path, Warn warn = {},
                     FindDamage find_damage = FindDamage::where_read,
                     Opening opening = Opening::in_this_process);
  ~RunReader();
  RunReader(RunReader&&) noexcept;

  const std::vector<Segment>& segments() const;
  // The merged dictionaries of the run. The index is the id.
  const std::vector<std::string>& names(Dictionary dictionary) const;
  std::string config_text() const;  // the first segment's
  std::vector<std::pair<std::string, std::string>> environment() const;
  std::uint64_t record_count() const;  // repeated iterations count once

  // The damage found so far. find_damage() reads everything.
  std::vector<Damage> damage() const;
  void find_damage();

  using UseRecords = std::function<void(int rank, std::span<const Record>)>;
  using Progress = std::function<void(std::uint64_t records_looked_at)>;
  // Calls use() in order of rank, segment and writing. Records that a resumed segment repeats are
  // used once.
  void read(const RecordQuery& query, const UseRecords& use, const Progress& progress = {}) const;
  using UseHistogram =
      std::function<void(int rank, const Record& record, std::span<const HistogramBin> bins)>;
  // Calls use() for each histogram; the record's value is the number of elements. Skips a histogram
  // if a killed process wrote only some of its bins.
  void read_histograms(const RecordQuery& query, const UseHistogram& use) const;
  // Calls use() for each row of its table, in order of rank, segment and writing. The query applies
  // to the names that rows of this type have. Rows that a resumed segment repeats are used once or,
  // if the struct has a field for it, marked as superseded.
  void read_rows(const RecordQuery& query, const UseRow& use) const;
  // Like read_rows(), but returns the rows. Throws RecordError for more than kMaxLines rows of a
  // compressed table.
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
    if (Row::kTable.storage == Storage::packed && rows.size() == kMaxLines) {
      raise<RecordError>("{}: more than {} rows; select fewer", Row::kTable.name, kMaxLines);
    }
    rows.push_back(row);
  });
  return rows;
}

// Returns the files that RunReader reads for `path`.
TELENS_EXPORT std::vector<std::string> run_files(const std::string& path);

// The runs in a log_dir: each start of a training creates a run there.

// A run in a log_dir.
struct RunEntry {
  std::string folder;
  double start_time = 0;          // of the last start, in seconds since 1970
  std::optional<Segment> latest;  // of the lowest rank; nullopt if it cannot be read
  std::string problem;            // why `latest` cannot be read

  // Returns the name of the folder.
  std::string id() const;
};

// Returns the runs of a log_dir (or of its telens folder) that has more than one run, most recently
// started or resumed first. Returns none for other paths.
TELENS_EXPORT std::vector<RunEntry> list_runs(const std::string& path);

}  // namespace telens::record
