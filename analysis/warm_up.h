// Warm-up: the first iterations of delayed scaling, in which a layer does not have an amax history
// and every scale is 1. Losses of its casts say nothing about FP8.
#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <string>

#include "record/run_reader.h"

namespace telens::analysis {

// The warm-up that the run reports; none for a run that was recorded before runs reported it.
class WarmUp {
 public:
  explicit WarmUp(const record::RunReader& run);

  bool covers(std::int32_t layer, std::int64_t iteration) const;
  bool empty() const { return layers_.empty(); }
  std::size_t layers() const { return layers_.size(); }
  std::set<std::int64_t> iterations() const;  // of any layer

  // Kind of the event that reports warm-up.
  static constexpr std::string_view kKind = "warm_up";

 private:
  std::map<std::int32_t, std::set<std::int64_t>> layers_;
};

// "iteration 0", "iterations 0 to 2", "iterations 0 to 2, 58": a resumed run has more than one.
std::string describe_iterations(const WarmUp& warm_up);

}  // namespace telens::analysis
