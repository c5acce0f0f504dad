// The files that one process writes for one rank: one file or, if max_size has room for several, a
// series whose oldest files are thinned so that the total stays below max_size. Replaces a file
// that cannot be written any more or was removed. For one thread. Throws DiskFull, after which
// finish() and the destructor are allowed, or another RecordError, after which only the destructor
// is.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "record/segment_copy.h"
#include "record/segment_writer.h"

namespace telens::record {

// Below this size, recording stops at max_size: a thinned file must be small compared to the fixed
// size of a file.
inline constexpr std::uint64_t kMinThinnedSize = 16 << 20;

// Returns false if no file can be created in the folder, so that retries are useless.
bool is_writable_folder(const std::string& path);

class SegmentSeries {
 public:
  // Receives a line about lost rows and about the file in which recording continues.
  using Report = std::function<void(const std::string& text)>;
  SegmentSeries(const RunOptions& options, const std::string& folder, Report report);

  void write(const Batch& batch);  // on disk on return
  // Ends the current file. Must be the last call.
  void finish(End end, const std::string& reason);
  // Like finish(), after a full disk. In two steps, because the number of lost rows is only known
  // at the end of the run.
  void end_as_failed(const std::string& reason);
  void close(std::uint64_t rows_lost, std::int64_t first_iteration_lost);

  // True while an older file must be thinned. run_step() does a part of that work.
  bool is_thinning() const { return thinning_ != nullptr; }
  void run_step();

  const std::string& path() const { return first_path_; }
  // Excludes rows that were lost with a removed file.
  std::uint64_t rows_written() const {
    const std::uint64_t current = abandoned_rows_.value_or(current_->written().recorded());
    return rows_in_other_files_ + current - rows_lost_;
  }
  std::uint64_t bytes() const { return ended_bytes() + current_bytes(); }

 private:
  // A file that was closed or abandoned.
  struct Ended {
    std::string path;
    std::uint64_t bytes = 0;
    bool thin = false;  // thinning it again would gain nothing
  };

  bool can_thin() const { return options_.max_size >= kMinThinnedSize; }
  std::uint64_t share() const { return options_.max_size / kShares; }
  std::uint64_t ended_bytes() const;
  std::uint64_t current_bytes() const { return current_ ? current_->file_size() : 0; }
  void prepare();
  template <typename Make>
  std::unique_ptr<SegmentWriter> create_with_retries(Make make);
  void write_piece(const Batch& piece);
  void write_to_current(const Batch& batch);
  void recover_from_failure(Batch rest, RowCounts before, const std::string& cause);
  void abandon_current(Batch& rest, const RowCounts& before);
  void recover_from_removal();
  void start_next_file();
  std::unique_ptr<SegmentWriter> create_next_file(std::uint64_t others);
  void replace_current(std::unique_ptr<SegmentWriter> next, std::uint64_t rows_kept);
  void start_thinning();
  bool make_room();

  // One share of max_size is for the current file and one for the copy of a file that is being
  // thinned.
  static constexpr std::uint64_t kShares = 8;
  static constexpr std::uint64_t kSharesOfEnded = kShares - 2;

  RunOptions options_;
  std::string folder_;
  Report report_;
  int failures_ = 0;
  std::uint64_t rows_in_other_files_ = 0;
  // The number of rows in the current file after abandon().
  std::optional<std::uint64_t> abandoned_rows_;
  std::uint64_t rows_lost_ = 0;       // with the current file
  std::int64_t first_iteration_ = 0;  // in the current file
  std::string first_path_;
  std::vector<Ended> ended_;  // oldest first
  std::unique_ptr<SegmentWriter> current_;
  std::unique_ptr<Thinning> thinning_;
  std::array<std::vector<std::string>, kDictionaries> names_;  // each file starts with them
};

}  // namespace telens::record
