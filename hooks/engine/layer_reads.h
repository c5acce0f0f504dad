// The engine's data of a layer: observations since the last step, destinations of rows, and state
// that persists between iterations.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "hooks/rank_group.h"
#include "hooks/sink.h"
#include "hooks/statistics/scales.h"
#include "hooks/statistics/statistic_name.h"
#include "hooks/statistics_engine.h"

namespace telens::features {

// Caches the series of a tensor's statistics.
class KnownSeries {
 public:
  // Begins the rows of an observation that was reduced over `group`. Drops the cached series of a
  // different group.
  void begin(std::string_view group);

  // Returns the index of the statistic's series; size() if it is not cached. Checks the index after
  // the last result first, because the order of statistics rarely changes.
  std::size_t find(const StatisticName& name);
  std::size_t add(const StatisticName& name, const Series& series);

  const Series& operator[](std::size_t place) const { return *all_[place].second; }
  std::size_t size() const { return all_.size(); }
  const std::string& group() const { return group_; }

 private:
  std::string group_;
  std::vector<std::pair<StatisticName, const Series*>> all_;
  std::size_t next_ = 0;
};

// The destinations of a statistic's rows.
struct RowAddress {
  bool loggers = false;
  bool run_file = false;
  std::uint64_t rings = 0;  // look-back buffers (Row::rings)

  // Returns the look-back buffers; 0 if the rows go to the run file anyway.
  std::uint64_t kept_in() const { return run_file ? 0 : rings; }
};

// The destinations of the rows of a tensor, by statistic.
class RowAddresses {
 public:
  // `rings`: look-back buffers; 0 for the run file, and also for loggers if `logged`.
  void add(const StatisticName& name, bool logged, std::uint64_t rings);
  void add(const RowAddresses& others);

  // Returns the destinations; nullopt if no reader requested the statistic.
  std::optional<RowAddress> of(const StatisticName& name) const;
  // Returns the destinations of counters, which are recorded with any statistic but not passed to
  // loggers.
  RowAddress of_counters() const;

 private:
  std::vector<std::pair<StatisticName, RowAddress>> all_;  // names are unique
};

class TensorObservation;
using Observations = std::vector<std::shared_ptr<TensorObservation>>;

// State of a layer's tensor that persists between iterations, separately for training and
// evaluation. Only collect() uses it.
struct TensorHistory {
  const std::string* layer_name = nullptr;
  TensorName tensor = TensorName::activation;
  bool evaluation = false;  // statistics are named <statistic>_eval
  KnownSeries series = {};
  std::vector<std::pair<RecipeId, ScaleMemory>> scales = {};  // by running recipe

  ScaleMemory& get_scale(RecipeId recipe);
};

class LayerReads final : public ObservedLayer {
 public:
  explicit LayerReads(std::string name);
  LayerReads(const LayerReads&) = delete;
  LayerReads& operator=(const LayerReads&) = delete;

  const std::string& name() const { return name_; }

  // Returns the observation to which a read is added; creates it at the first call after take().
  // `weight_group`: see TensorObservation. `next`: the number of the session's next observation.
  std::shared_ptr<TensorObservation> observation(TensorName tensor, bool evaluation,
                                                 std::int64_t iteration,
                                                 const RankGroupPtr& weight_group,
                                                 std::atomic<std::uint64_t>& next);

  // Moves observations to `taken`. Keeps observations that wait for a later reduction or that a
  // reader on another thread holds.
  void take(const Reductions& reductions, Observations& taken);

  TensorHistory& history(TensorName tensor, bool evaluation) {
    return histories_[2 * static_cast<std::size_t>(tensor) + (evaluation ? 1 : 0)];
  }

 private:
  const std::string name_;
  std::array<TensorHistory, 2 * kAllTensors.size()> histories_;
  std::mutex mutex_;  // guards open_
  Observations open_;
};

}  // namespace telens::features
