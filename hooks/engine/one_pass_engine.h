// The one pass: merges what all features ask of a tensor, reads it once, combines micro-batches and
// turns the sums into rows.
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
#include <vector>

#include "hooks/engine/captured_reads.h"
#include "hooks/engine/layer_reads.h"
#include "hooks/engine/tensor_observation.h"
#include "hooks/engine/weight_groups.h"
#include "hooks/statistics_engine.h"

namespace telens::features {

class OnePassEngine final : public StatisticsEngine {
 public:
  // The table and the registry (null: none) outlive this.
  OnePassEngine(SeriesTable& series, const StatisticRegistry* defined,
                OnStatisticFailure on_failure, HostCopies copies)
      : series_(series), defined_(defined, std::move(on_failure)), arrivals_(std::move(copies)) {}

  StatisticsRequestPtr prepare(std::span<const std::string> names, bool logged) override;
  std::vector<std::optional<double>> evaluate(const StatisticsRequest& request,
                                              const ScriptTensor& of, const at::Tensor& tensor,
                                              const debug::ReductionGroup& group) override;
  LayerReads& layer(std::string_view name) override;
  using StatisticsEngine::begin;
  std::unique_ptr<TensorReading> begin(ObservedLayer& layer, std::int64_t iteration,
                                       const InspectTensorCall& call) override;
  Collected collect(std::int64_t iteration, const Reductions& reductions, Waiting waiting) override;

  void prepare_for_graphs(std::string_view layer_name, const at::Device& device) override {
    captured_.prepare(layer_name, device);
  }
  void begin_iteration(std::int64_t iteration) override { captured_.begin_iteration(iteration); }

  DefinedStatistics& defined() { return defined_; }
  CapturedReads& captured() { return captured_; }

  // The observation that a read adds to; made where there is none since the last collect(). It is
  // not collected while a reader holds it.
  std::shared_ptr<TensorObservation> observation(LayerReads& layer, const InspectTensorCall& call,
                                                 std::int64_t iteration);

 private:
  using Arrived = Arrivals<Observations>::Arrived;

  // But for those that wait.
  Observations take_observations(const Reductions& reductions);
  std::vector<Totals> get_totals(const Arrived& arrived);
  // Exchanges what is due; the group of each observation that was.
  std::vector<debug::ReductionGroup> exchange(const Observations& observations,
                                              std::vector<Totals>& totals,
                                              const Reductions& reductions, Collected& collected);

  SeriesTable& series_;
  DefinedStatistics defined_;
  WeightGroups weight_groups_;  // that weights were seen with in this session
  Arrivals<Observations> arrivals_;
  CapturedReads captured_;
  std::atomic<std::uint64_t> next_observation_{0};
  std::mutex layers_mutex_;  // over what follows
  std::map<std::string, std::unique_ptr<LayerReads>, std::less<>> layers_;
};

}  // namespace telens::features
