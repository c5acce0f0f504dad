// The files that one process writes of one rank: a single one or, with a max_size that has room for
// several, one after the other, the oldest of which are thinned so that all together stay below it.
// A file that cannot be written any more, or that was removed, is followed by another one. Used by
// one thread; throws DiskFull, after which finish() and its destruction are allowed, or another
// RecordError, after which only its destruction is.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "record/segment_writer.h"
#include "record/thinning.h"

namespace telens::record {

// Below this, max_size ends the recording: what is left of a file after thinning must be small
// beside what a file takes without any record.
inline constexpr std::uint64_t kLeastThinnedSize = 16 << 20;

// False if no file can be created in it, however often that is tried.
bool is_writable_folder(const std::string& path);

class SegmentSeries {
 public:
  // Hears what was lost, and where the recording goes on.
  using Tell = std::function<void(const std::string& text)>;
  SegmentSeries(const RunOptions& options, const std::string& folder, Tell tell);

  void write(const Batch& batch);  // on disk when it returns
  // The last call; the file that is being written ends so.
  void finish(End end, const std::string& reason);
  // The same for a disk that takes no more, in two steps: what is lost from here on is known at the
  // end of the run.
  void end_as_failed(const std::string& reason);
  void close(std::uint64_t rows_lost, std::int64_t first_iteration_lost);

  // True if an older file is being thinned, or is to be; go_on() does a piece of that work.
  bool has_more_to_do() const { return thinning_ != nullptr; }
  void go_on();

  const std::string& path() const { return first_path_; }
  // Less those that went with a removed file.
  std::uint64_t rows_written() const {
    const std::uint64_t current = rows_of_abandoned_.value_or(current_->written().recorded());
    return rows_of_others_ + current - rows_lost_;
  }
  std::uint64_t bytes() const { return ended_bytes() + current_bytes(); }

 private:
  // A file that is not written any more.
  struct Ended {
    std::string path;
    std::uint64_t bytes = 0;
    bool thin = false;  // thinning it again would gain nothing
  };

  bool thins() const { return options_.max_size >= kLeastThinnedSize; }
  std::uint64_t share() const { return options_.max_size / kShares; }
  std::uint64_t ended_bytes() const;
  std::uint64_t current_bytes() const { return current_ ? current_->file_size() : 0; }
  void prepare();
  template <typename Make>
  std::unique_ptr<SegmentWriter> create_with_retries(Make make);
  void write_piece(const Batch& piece);
  void write_to_current(const Batch& batch);
  void go_on_after_failure(Batch rest, RowCounts before, const std::string& cause);
  void abandon_current(Batch& rest, const RowCounts& before);
  void go_on_after_removal();
  void begin_next();
  std::unique_ptr<SegmentWriter> next_file(std::uint64_t others);
  void leave_current(std::unique_ptr<SegmentWriter> next, std::uint64_t rows_left_there);
  void begin_thinning();
  bool make_room();

  // One share of max_size is for the file that is being written, and one for the copy of one that
  // is being thinned.
  static constexpr std::uint64_t kShares = 8;
  static constexpr std::uint64_t kSharesOfEnded = kShares - 2;

  RunOptions options_;
  std::string folder_;
  Tell tell_;
  int failures_ = 0;
  std::uint64_t rows_of_others_ = 0;
  // The rows of the current file, once it could not be written any more.
  std::optional<std::uint64_t> rows_of_abandoned_;
  std::uint64_t rows_lost_ = 0;       // with the file that is being written
  std::int64_t first_iteration_ = 0;  // in the file that is being written
  std::string first_path_;
  std::vector<Ended> ended_;  // the oldest first
  std::unique_ptr<SegmentWriter> current_;
  std::unique_ptr<Thinning> thinning_;
  std::array<std::vector<std::string>, kDictionaries> names_;  // every file begins with them
};

}  // namespace telens::record
