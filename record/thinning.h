// Rewrites one ended file of a run with half of its iterations. Piece by piece, so that a thread
// that has to write new rows meanwhile can. A reader, and a kill of the
// process, finds the file as it was or as it becomes, never in between.
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

// The event that a thinned file has, and telens info shows.
inline constexpr std::string_view kThinnedEvent = "thinned";

class Thinning {
 public:
  // Begins. Throws RecordError, here and in go_on(), after which the file is as it was: also where
  // the file is damaged. BeingRewritten: it is being repaired, or thinned, just now.
  explicit Thinning(const std::string& path);
  ~Thinning();
  Thinning(const Thinning&) = delete;
  Thinning& operator=(const Thinning&) = delete;

  // Some milliseconds' worth; false: it is done, and the file replaced.
  bool go_on();

  const std::string& path() const { return path_; }

  // Removes what a killed process has left of it.
  static void remove_leftovers(const std::string& folder, int rank);

 private:
  void look();
  void choose();
  void begin_writing();
  void finish();
  bool keeps(const Record& record, bool iteration_kept) const;
  bool keeps(std::int64_t iteration) const { return kept_.contains(iteration); }
  void add_event(Batch& batch) const;

  std::string path_, temporary_;
  RewriteClaim claim_;
  std::unique_ptr<SegmentReader> original_;
  std::unique_ptr<SegmentCopy> copy_;
  std::vector<char> counts_non_finite_;  // by id of a statistic
  std::set<std::int64_t> iterations_, kept_;
  std::int64_t last_looked_at_ = 0;
  std::uint64_t next_chunk_ = 0;
  bool looked_ = false;
  bool copied_ = false;
};

}  // namespace telens::record
