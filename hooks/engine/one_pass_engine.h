// The statistics engine. Merges the requests of every feature for a tensor, reads the tensor once,
// sums over micro-batches and ranks, and computes rows from the sums. No LibTorch.
#pragma once

#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "hooks/engine/graph_reads.h"
#include "hooks/engine/layer_reads.h"
#include "hooks/engine/rank_exchange.h"
#include "hooks/engine/tensor_observation.h"
#include "hooks/sink.h"
#include "hooks/statistic_definition.h"
#include "hooks/statistics/statistic_name.h"
#include "hooks/statistics_engine.h"
#include "hooks/streams.h"

namespace telens {

// Returns true if the text is the name of a built-in statistic.
bool is_builtin_statistic(std::string_view name);

// `series` and `defined` must outlive the engine. `on_failure` is called once for each plugin
// statistic that fails, on any thread.
std::unique_ptr<StatisticsEngine> make_statistics_engine(SeriesTable& series,
                                                         const StatisticRegistry* defined = nullptr,
                                                         OnStatisticFailure on_failure = {},
                                                         HostCopies copies = copy_to_host);

}  // namespace telens

namespace telens::features {

// The parsed statistics that a feature requests.
struct StatisticsList final : StatisticsRequest {
  StatisticsList(std::vector<StatisticName> names, bool for_loggers)
      : statistics(std::move(names)), logged(for_loggers) {}

  std::vector<StatisticName> statistics;
  bool logged;  // passed to loggers in addition to the run file
};

class OnePassEngine final : public StatisticsEngine {
 public:
  // `series` and `defined` must outlive this object; `defined` may be null.
  OnePassEngine(SeriesTable& series, const StatisticRegistry* defined,
                OnStatisticFailure on_failure, HostCopies copies)
      : series_(series), defined_(defined, std::move(on_failure)), arrivals_(std::move(copies)) {}

  StatisticsRequestPtr prepare(std::span<const std::string> names, bool logged) override;
  std::vector<std::optional<double>> evaluate(const StatisticsRequest& request,
                                              const ScriptTensor& of, const TensorHandle& tensor,
                                              const RankGroupPtr& group) override;
  LayerReads& layer(std::string_view name) override;
  using StatisticsEngine::begin;
  std::unique_ptr<TensorReading> begin(ObservedLayer& layer, std::int64_t iteration,
                                       const ObservedTensor& call) override;
  Collected collect(std::int64_t iteration, const Reductions& reductions, Waiting waiting) override;

  void prepare_for_graphs(std::string_view layer_name, DeviceId device) override {
    captured_.prepare(layer_name, device);
  }
  void begin_iteration(std::int64_t iteration) override { captured_.begin_iteration(iteration); }

  DefinedStatistics& defined() { return defined_; }
  CapturedReads& captured() { return captured_; }

  // Returns the observation to which a read is added; creates it at the first call after collect().
  // An observation is not collected while a reader holds it.
  std::shared_ptr<TensorObservation> observation(LayerReads& layer, const ObservedTensor& call,
                                                 std::int64_t iteration);

 private:
  using Arrived = Arrivals<Observations>::Arrived;

  // Returns all observations that do not wait for a later reduction.
  Observations take_observations(const Reductions& reductions);
  std::vector<Totals> get_totals(const Arrived& arrived);
  // Merges the due sums over ranks. Returns the group per observation; null if it was not
  // merged.
  std::vector<RankGroupPtr> exchange(const Observations& observations, std::vector<Totals>& totals,
                                     const Reductions& reductions, Collected& collected);

  SeriesTable& series_;
  DefinedStatistics defined_;
  WeightGroups weight_groups_;  // groups of the weights observed in this session
  Arrivals<Observations> arrivals_;
  CapturedReads captured_;
  std::atomic<std::uint64_t> next_observation_{0};
  std::mutex layers_mutex_;  // guards layers_
  std::map<std::string, std::unique_ptr<LayerReads>, std::less<>> layers_;
};

}  // namespace telens::features
