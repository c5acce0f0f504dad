// The contents of a run, as rules ask for them: series by statistic, scalars, states of GEMMs,
// warm-up.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <tuple>
#include <unordered_map>
#include <vector>

#include "analysis/rank_ends.h"
#include "analysis/series.h"
#include "record/run_reader.h"

namespace telens::analysis {

// The precision of a GEMM from an iteration on. docs/run_file.md describes `entries`.
struct GemmState {
  Place place;
  std::int64_t iteration = 0;
  std::map<std::string, std::string> entries;

  std::string detail(const std::string& entry) const;
};

// A loss, or another number of the program.
struct Scalars {
  std::string name;
  int rank = 0;
  std::vector<Point> points;
};

// A later process that resumed the run. Iterations that it repeats replace the earlier ones.
struct Resume {
  std::int64_t last_before = INT64_MIN;  // unknown if earlier files are missing
  std::int64_t first = 0;                // iteration that it recorded
};

// Both ends are included.
struct Iterations {
  std::int64_t first = INT64_MIN;
  std::int64_t last = INT64_MAX;
};

class Facts {
 public:
  // Reads the given statistics and all other tables of these iterations. GEMM states before the
  // first iteration are also read. Non-finite elements in histograms count like the recorded
  // statistic. Throws RecordError.
  Facts(const record::RunReader& run, std::span<const std::string_view> statistics,
        Iterations iterations = {});

  // Returns the series of a statistic in training order, then by rank.
  std::vector<const Series*> with(std::string_view statistic) const;
  // Returns another statistic of the same tensor, layer and rank: for the same GEMM if recorded,
  // else of the tensor itself, else for any GEMM. Returns nullptr if it was not recorded.
  const Series* beside(const Series& series, std::string_view statistic) const;
  const Series* find(const Place& place, std::string_view statistic) const;
  bool has(std::string_view statistic) const { return !with(statistic).empty(); }

  const std::vector<Scalars>& scalars() const { return scalars_; }
  // Sorted by rank, layer and GEMM, then by time.
  const std::vector<GemmState>& gemm_states() const { return gemm_states_; }

  // Iterations of a layer in which delayed scaling had no amax history.
  const std::set<std::int64_t>& warm_up(std::int32_t layer) const;
  bool is_warm_up(std::int32_t layer, std::int64_t iteration) const {
    return warm_up(layer).contains(iteration);
  }

  const std::string& layer_name(std::int32_t layer) const;
  const std::vector<std::string>& layer_names() const { return layer_names_; }
  std::size_t layers() const { return layer_names_.size(); }
  // Returns the name with a * for each number, also inside words: "layers.*.fc*".
  const std::string& select_part(std::int32_t layer) const { return parts_[layer]; }
  // Returns the name with a * for each component that is a number: "layers.*.fc1". Layers of one
  // kind have the same function in different blocks; fc1 and fc2 are different kinds.
  const std::string& get_kind(std::int32_t layer) const { return kinds_[layer]; }
  std::int64_t first_iteration() const { return first_; }
  std::int64_t last_iteration() const { return last_; }
  int ranks() const { return ranks_; }
  // Returns the last iteration that a rank recorded. Returns nullopt if its last file belongs to a
  // world of a different size than the newest one: the run has continued without this rank.
  std::optional<std::int64_t> last_of_rank(int rank) const;
  // Returns a clause (analysis/run_state.h), or "" if nothing prevented features from comparing
  // ranks.
  const std::string& why_not_compared() const { return why_not_compared_; }
  // Returns the run's configuration text, or "" if none was recorded.
  const std::string& config_text() const { return config_text_; }
  // In order of time for each rank.
  const std::vector<Resume>& resumes() const { return resumes_; }
  const RunEnding& ending() const { return ending_; }

 private:
  using Key = std::tuple<std::int32_t, int, int, int, std::int32_t>;
  struct KeyHash {
    std::size_t operator()(const Key& key) const;
  };
  static Key make_key(const Place& place, std::int32_t statistic);

  record::RecordQuery query() const;
  void read_names(const record::RunReader& run);
  void read_resumes(const record::RunReader& run);
  void read_world(const record::RunReader& run);
  void read_warm_up(const record::RunReader& run);
  void read_series(const record::RunReader& run, std::span<const std::string_view> statistics);
  void read_histograms(const record::RunReader& run, std::span<const std::string_view> statistics);
  // Whether a statistic has a meaning in warm-up, in which all scales are 1: never, only for
  // weights, or always.
  enum class InWarmUp { meaningless, meaningful_of_weights, meaningful };
  static InWarmUp judge_in_warm_up(std::string_view statistic);
  void add_point(const Place& place, std::int32_t statistic, const Point& point, InWarmUp warm_up);
  void read_scalars(const record::RunReader& run);
  void read_ledger(const record::RunReader& run);
  void put_in_order();
  const Series* find(const Place& place, std::int32_t statistic) const;

  Iterations read_;
  std::vector<std::string> layer_names_;
  std::vector<std::string> parts_;
  std::vector<std::string> kinds_;
  std::unordered_map<std::string, std::int32_t> statistics_;
  std::vector<Series> series_;
  std::unordered_map<Key, std::size_t, KeyHash> index_;
  std::unordered_map<std::int32_t, std::vector<std::size_t>> by_statistic_;
  std::vector<Scalars> scalars_;
  std::vector<GemmState> gemm_states_;
  std::map<std::int32_t, std::set<std::int64_t>> warm_up_;
  std::int64_t first_ = INT64_MAX;
  std::int64_t last_ = INT64_MIN;
  int ranks_ = 0;
  std::map<int, std::int64_t> last_of_ranks_;  // only ranks of the newest world
  std::string why_not_compared_;
  std::string config_text_;
  std::vector<Resume> resumes_;
  RunEnding ending_;
};

}  // namespace telens::analysis
