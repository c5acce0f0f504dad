// Runs all rules repeatedly while a run is recorded, and reports each finding once.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

#include "analysis/diagnosis.h"

namespace telens::analysis {

// The reaction to a finding, in order of strength.
enum class Action : std::uint8_t { ignore, tell, veto, stop };

struct LiveLookOptions {
  std::string path;  // the run's folder, or one of its files
  std::string run;   // the run's name in commands
  std::function<Action(std::string_view cause)> get_action;
  std::function<bool(const std::string& layer)> selects;
  // If the run has more records, only the last iterations with about this many records are read, so
  // that the time per look is bounded.
  std::uint64_t most_records = 500'000;
};

// A new finding, with the strongest action that it or one of its consequences requires.
struct LiveFinding {
  Action action = Action::tell;
  std::string cause;
  std::string layer;  // "" if it does not concern a single layer
  std::int64_t first = 0;
  std::int64_t last = 0;
  double confidence = 0;
  std::string text;  // a line: cause, place, iterations, summary, next step
  std::string json;  // an entry of `findings` of docs/diagnosis.md
};

struct LiveFindings {
  std::vector<LiveFinding> found = {};
  bool vetoes = false;  // true if any current finding vetoes, even if it was reported before
};

class LiveLook {
 public:
  explicit LiveLook(LiveLookOptions options) : options_(std::move(options)) {}

  struct Request {
    std::int64_t last = INT64_MAX;   // last iteration to read
    std::int64_t since = INT64_MIN;  // findings that ended before it are not reported
    // Findings that began in the last recorded iteration are reported by the next look, because
    // some rules need the iteration after it. Set this in the last look to report them at once.
    bool at_end = false;
  };
  // Throws RecordError.
  LiveFindings look(const Request& request);

 private:
  // Cause, layer, tensor, gemm, rank.
  using Key = std::tuple<std::string, std::string, int, int, int>;
  static Key make_key(const Finding& finding, const Facts& facts);

  // The part of the run that a look has read.
  struct Seen {
    const Facts& facts;
    std::int64_t since = INT64_MIN;
    bool is_part = false;  // true if earlier iterations were skipped
    std::int64_t settled = 0;
  };
  bool counts(const Finding& finding, const Seen& seen) const;
  bool vetoes(const Ranked& ranked, const Seen& seen) const;
  std::optional<Action> new_action(const Ranked& ranked, const Seen& seen);
  LiveFinding make_live_finding(const Ranked& ranked, Action action, const Facts& facts) const;

  const LiveLookOptions options_;
  std::set<Key> known_;
};

}  // namespace telens::analysis
