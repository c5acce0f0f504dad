// Copies one ended file of a run into a new file: all records, a selection, or half of its
// iterations.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "record/claims.h"
#include "record/segment_reader.h"
#include "record/segment_writer.h"

namespace telens::record {

class SegmentCopy {
 public:
  // Creates the file `path` with the names of `original`, which must outlive this object.
  SegmentCopy(const SegmentReader& original, const std::string& path,
              const SegmentContext& context);
  ~SegmentCopy();
  SegmentCopy(const SegmentCopy&) = delete;
  SegmentCopy& operator=(const SegmentCopy&) = delete;

  using Keeps = std::function<bool(const Record&)>;
  // Copies the selected records of the next `chunks` chunks and their histograms. Returns false if
  // none are left.
  bool copy_records(std::uint64_t chunks, const Keeps& keeps);
  // Copies the drops and all other tables; tables that are thinned (Table::is_thinned) only in
  // selected iterations. Also writes `rest`, which has the events. Must be the last call.
  using KeepsIteration = std::function<bool(std::int64_t iteration)>;
  void finish(Batch rest, const KeepsIteration& keeps, const RunEnd& end);

  // Adds an event to the batch. Its words get ids after the original's words.
  void add_event(Batch& batch, std::string_view kind, std::string_view text,
                 std::int64_t iteration) const;

 private:
  void add_bins(Batch& batch, std::uint64_t row, std::int64_t new_row);
  template <typename Row>
  void copy_rows(const KeepsIteration& keeps);

  const SegmentReader& original_;
  std::unique_ptr<PackedRows<BinRow>> bins_;
  std::unique_ptr<SegmentWriter> copy_;
  std::uint64_t next_chunk_ = 0;

  // The position in the bins.
  std::vector<BinRow> piece_of_bins_;
  std::uint64_t next_bins_ = 0;
  std::size_t next_bin_ = 0;
};

// ---- Thinning rewrites one ended file of a run with half of its iterations. It works in steps, so
// that the calling thread can write new rows in between. Readers see either the old file or the new
// one, also after a kill.

// The event of a thinned file, which telens info shows.
inline constexpr std::string_view kThinnedEvent = "thinned";

class Thinning {
 public:
  // Starts thinning. The constructor and run_step() throw RecordError if the file is damaged or
  // cannot be rewritten; the file is then unchanged. Throws BeingRewritten if another process
  // repairs or thins the file.
  explicit Thinning(const std::string& path);
  ~Thinning();
  Thinning(const Thinning&) = delete;
  Thinning& operator=(const Thinning&) = delete;

  // Works for some milliseconds. Returns false when the file has been replaced.
  bool run_step();

  const std::string& path() const { return path_; }

  // Removes the temporary file of a killed process.
  static void remove_leftovers(const std::string& folder, int rank);

 private:
  void collect_iterations();
  void choose_iterations();
  void begin_writing();
  void finish();
  bool keeps(const Record& record, bool iteration_kept) const;
  bool keeps(std::int64_t iteration) const { return kept_.contains(iteration); }
  void add_event(Batch& batch) const;

  std::string path_, temporary_;
  RewriteClaim claim_;
  std::unique_ptr<SegmentReader> original_;
  std::unique_ptr<SegmentCopy> copy_;
  std::vector<char> counts_non_finite_;  // indexed by statistic id
  std::set<std::int64_t> iterations_, kept_;
  std::int64_t last_iteration_ = 0;
  std::uint64_t next_chunk_ = 0;
  bool iterations_collected_ = false;
  bool copied_ = false;
};

}  // namespace telens::record
