// Writes one rank's run file. Training never waits for the disk. Requires neither LibTorch nor
// HDF5's headers.
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
#include "record/disk_space.h"
#include "record/run_schema.h"

namespace telens::record {

// If the queue is full, push() drops the newest rows and counts them, or waits.
enum class OnFull : std::uint8_t { drop, block };

// How a run ended: closed, stopped by an error, killed (written by repair), or by an uncaught
// exception. A file without an end is still being written, or its process was killed.
enum class End : std::uint8_t { clean, failed, killed, exception };

// A file without records takes 240 KiB, and the same is reserved for ending it: less could not
// record anything.
inline constexpr std::uint64_t kMinMaxSize = 512 << 10;

struct RunOptions {
  std::string log_dir = ".";
  // Up to 128 letters, digits and ._-+:=,@, not starting with a dot. "" means TELENS_RUN_ID if set,
  // else a new time stamp. Ranks other than 0 must get the id of rank 0. The id of an existing run
  // resumes it with a new segment.
  std::string run_id;
  int rank = 0;
  int world_size = 1;
  // The claim on the rank's files. If nullptr, open() takes it, possibly with another run id.
  std::shared_ptr<const RankClaim> claim;
  std::string config_text;
  std::vector<std::pair<std::string, std::string>> environment;
  // Identifies the kernel under which the file is written; "" if unknown.
  std::string boot_id = get_boot_id();
  OnFull on_full = OnFull::drop;
  // The maximum size of this rank's files together, in bytes; 0 means no limit. From 16 MiB on,
  // older iterations are thinned to stay below it; otherwise recording stops there, as on a full
  // disk. The minimum is kMinMaxSize.
  std::uint64_t max_size = 0;
  std::size_t queue_capacity = 1U << 18;  // maximum number of rows that wait for the disk
  // Called at most once, when an error stops recording, with one line: the file, the cause, the
  // first lost iteration, the remedy. May be called on the writer's thread. Default: print to
  // stderr.
  std::function<void(const std::string&)> on_error;
  // Called with one line if rows are lost while recording continues: when a slow disk first drops
  // rows, when a file had to be replaced, and at the end with the number of lost rows unless the
  // file that on_error reported has it. Called on any thread. Default: print to stderr. The line is
  // also an event of the run.
  std::function<void(const std::string&)> on_warning;
};

struct Counters {
  std::uint64_t written = 0;  // rows of all tables on disk
  std::uint64_t dropped = 0;  // rows that found the queue full
  std::uint64_t failed = 0;   // rows after recording stopped, or lost with a file
  std::uint64_t bytes = 0;    // total size of this rank's files
};

// Thread-safe. Disk errors do not throw: recording stops, on_error is called, further rows count as
// failed, and training continues. A row is on disk at most two seconds after its push.
class TELENS_EXPORT RunWriter {
 public:
  // Never returns nullptr. If the file cannot be created, the writer is off (recording() is false).
  // If another live process writes the rank's files of the run, the writer creates a new run
  // (run_id()). Throws UsageError for a max_size that is too small and for an invalid run id.
  static std::unique_ptr<RunWriter> open(const RunOptions& options);
  ~RunWriter();  // calls close(End::clean) if close() was not called
  RunWriter(const RunWriter&) = delete;
  RunWriter& operator=(const RunWriter&) = delete;

  // Returns the id of a name, which is the same at each call. Frequent callers should keep the id.
  std::int32_t intern(Dictionary dictionary, std::string_view name);

  void push(std::span<const Record> records);
  // Rows for one table, kept or dropped together. Sets the time of events whose time is 0.
  void push(const SomeRows& rows);
  // One record, whose value is the number of elements, and its bins. Kept or dropped together.
  void histogram(const Record& record, std::span<const HistogramBin> bins);

  // Rows with names instead of ids: the loss or another number of the training program, and an
  // event.
  void scalar(std::int64_t iteration, std::string_view name, double value);
  void event(std::int64_t iteration, std::string_view kind, std::string_view text,
             std::int32_t layer = kNoName);

  void flush();       // returns when all earlier rows are on disk or recording has stopped
  void flush_soon();  // requests a flush and returns, as at the first non-finite statistic
  // Flushes. Rows pushed afterwards count as failed. `reason` is the message of an exception.
  void close(End end = End::clean, const std::string& reason = "");

  // false if recording could not start, was stopped by an error, or is closed
  bool recording() const;
  std::string error() const;        // the line that on_error received, or ""
  const std::string& path() const;  // the segment that this writer started
  const std::string& run_id() const;
  Counters counters() const;

 private:
  class Impl;
  explicit RunWriter(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

// Throws UsageError like open().
void check_options(const RunOptions& options);

}  // namespace telens::record
