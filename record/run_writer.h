// Writes one rank's run file without ever making training wait for the disk.
// No LibTorch; HDF5 stays behind this header.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/base/error.h"
#include "record/claims.h"
#include "record/run_schema.h"

namespace telens::record {

// Behavior of push() when the queue is full: drop the newest and count them, or wait.
enum class OnFull : std::uint8_t { drop, block };

// How a run ended: properly, because it could not be recorded any longer, without being closed
// (which only repair can write down), or by an exception that left the program. A file without an
// end still goes on, or was killed.
enum class End : std::uint8_t { clean, failed, killed, exception };

// A file without any record takes 240 KiB, and as much is kept free for ending it: below this
// nothing could be recorded.
inline constexpr std::uint64_t kLeastMaxSize = 512 << 10;

struct RunOptions {
  std::string log_dir = ".";
  // A name of letters, digits and ._-+:=,@ that begins with no dot; 128 characters at the most.
  // "": TELENS_RUN_ID if set, else a time stamp that no run in log_dir has yet. Ranks other than 0
  // are given rank 0's. The id of an existing run resumes it with a new segment.
  std::string run_id;
  int rank = 0;
  int world_size = 1;
  // The claim on this rank's files of the run. Null: open() takes it, and perhaps another run id
  // with it.
  std::shared_ptr<const RankClaim> claim;
  std::string config_text;
  std::vector<std::pair<std::string, std::string>> environment;
  OnFull on_full = OnFull::drop;
  // Bytes of this rank's files together; 0: no limit. From 16 MiB on older iterations are thinned
  // to stay below it, otherwise recording stops there, as on a full disk. At least kLeastMaxSize.
  std::uint64_t max_size = 0;
  std::size_t queue_capacity = 1U << 18;  // rows that may wait for the disk
  // Called at most once, when recording stops because of an error, with one line that names the
  // file, what failed and how to mend it. May be called on the writer's thread. Default: stderr.
  std::function<void(const std::string&)> on_error;
  // Called with one line for what costs rows while recording goes on: the first rows that a slow
  // disk drops, a file that had to be left, and at the end how many rows were not recorded. On any
  // thread. Default: stderr. The run has the line as an event, too.
  std::function<void(const std::string&)> on_warning;
};

struct Counters {
  std::uint64_t written = 0;  // rows of all tables that are on disk
  std::uint64_t dropped = 0;  // rows that found the queue full
  std::uint64_t failed = 0;   // rows that came after recording stopped, or were lost with a file
  std::uint64_t bytes = 0;    // size of this rank's files
};

// All functions may be called from any thread, and none throws because of a disk: recording stops,
// on_error is told, rows are counted as failed, training goes on. A row is on disk at the latest
// two seconds after its push.
class TELENS_EXPORT RunWriter {
 public:
  // Never null. Where the file cannot be created, the writer is off: see recording(). Where another
  // live process writes the rank's files of the run, this one gets a run of its own: see run_id().
  // Throws UsageError for a max_size that is too small, and for what no run can be called.
  static std::unique_ptr<RunWriter> open(const RunOptions& options);
  ~RunWriter();  // close(End::clean), if close was not called
  RunWriter(const RunWriter&) = delete;
  RunWriter& operator=(const RunWriter&) = delete;

  // The id of a name, the same at each call. Cheap, but hot callers keep the id.
  std::int32_t intern(Dictionary dictionary, std::string_view name);

  void push(std::span<const Record> records);
  // Rows of one table; kept or dropped together. The time of an event is set here where it is 0.
  void push(const SomeRows& rows);
  // One record (its value is the number of elements) and its bins; kept or dropped together.
  void histogram(const Record& record, std::span<const HistogramBin> bins);

  // Rows whose names are given as they are: the loss, or any other number that a run records by
  // name, and something that happened.
  void scalar(std::int64_t iteration, std::string_view name, double value);
  void event(std::int64_t iteration, std::string_view kind, std::string_view text,
             std::int32_t layer = kNoName);

  void flush();       // returns when all that was pushed before is on disk, or recording stopped
  void flush_soon();  // asks for that without waiting, as at the first non-finite statistic
  // Flushes; everything after it counts as failed. The reason of an exception is its name.
  void close(End end = End::clean, const std::string& reason = "");

  bool recording() const;           // false: could not start, stopped by an error, or closed
  std::string error() const;        // the text that on_error was told, or ""
  const std::string& path() const;  // the segment that this writer began
  const std::string& run_id() const;
  Counters counters() const;

 private:
  class Impl;
  explicit RunWriter(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

// Throws UsageError as open() does, also for a run id that is no plain name of a folder.
void check_options(const RunOptions& options);

}  // namespace telens::record
