// Rewrites one ended file of a run with half of its iterations. Works in steps, so that the calling
// thread can write new rows in between. Readers see either the old file or the new one, also after
// a kill.
#pragma once

#include <cstdint>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "record/claims.h"
#include "record/segment_copy.h"
#include "record/segment_reader.h"

namespace telens::record {

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
