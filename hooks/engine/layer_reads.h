// One layer in the engine: the tensors that were read since the last step, where the rows of their
// statistics go, and the data that is kept from one iteration to the next.
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
#include "hooks/statistics/scale_sums.h"
#include "hooks/statistics/statistic_name.h"
#include "hooks/statistics_engine.h"

namespace telens::features {

// The series of one tensor's statistics, indexed by statistic.
class KnownSeries {
 public:
  // Begins the rows of an observation that was reduced over the group. Drops the series of any
  // other group.
  void begin(std::string_view group);

  // Returns the index of the statistic's series; size() if it is not known. Statistics usually come
  // in the same order, so the index after the last one is checked first.
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

// Where the rows of a statistic go.
struct RowAddress {
  bool loggers = false;
  bool run_file = false;
  std::uint64_t rings = 0;  // look-back buffers that keep them (Row::rings)

  // A row that goes to the run file is not kept.
  std::uint64_t kept_in() const { return run_file ? 0 : rings; }
};

// The addresses of the rows of a tensor's statistics.
class RowAddresses {
 public:
  // rings: 0 if the rows go to the run file, and also to loggers if `logged`.
  void add(const StatisticName& name, bool logged, std::uint64_t rings);
  void add(const RowAddresses& others);

  // Returns nullopt if no reader requested the statistic.
  std::optional<RowAddress> of(const StatisticName& name) const;
  // Returns the address of counters, which are recorded with any statistic, but are not passed to
  // loggers.
  RowAddress of_counters() const;

 private:
  std::vector<std::pair<StatisticName, RowAddress>> all_;  // no name twice
};

class TensorObservation;
using Observations = std::vector<std::shared_ptr<TensorObservation>>;

// What is kept of a tensor of a layer from one iteration to the next, in training or in evaluation.
// Used only by collect().
struct TensorHistory {
  const std::string* layer_name = nullptr;
  TensorName tensor = TensorName::activation;
  bool evaluation = false;  // its statistics are called <statistic>_eval
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

  // Returns the observation that a read adds to; creates it if there is none since the last take().
  // `weight_group`: as for TensorObservation. `next`: counts the observations of the session.
  std::shared_ptr<TensorObservation> observation(TensorName tensor, bool evaluation,
                                                 std::int64_t iteration,
                                                 const RankGroupPtr& weight_group,
                                                 std::atomic<std::uint64_t>& next);

  // Moves observations to `taken`, except those that wait for a later reduction or that a reader on
  // another thread holds.
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
