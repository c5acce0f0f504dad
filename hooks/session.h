// A debug session: the listener behind the hook points, from initialize to end_debug.
#pragma once

#include <atomic>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "core/hook_points.h"
#include "hooks/feature_registry.h"
#include "hooks/layer_routing.h"
#include "hooks/termination_flush.h"
#include "hooks/text_log.h"

namespace telens::debug {

class Session final : public HookListener, private FeatureServices {
 public:
  // Throws ConfigError and UsageError; nothing is installed then.
  explicit Session(InitializeOptions options);
  ~Session() override;  // flushes everything

  RoutingPlan route(LayerHooks& layer, const RoutingRequest& request) override;
  Operand modify_tensor(LayerHooks& layer, const RoutingPlan& plan,
                        const ModifyTensorCall& call) override;
  void inspect_tensor(LayerHooks& layer, const RoutingPlan& plan,
                      const InspectTensorCall& call) override;
  void inspect_tensor_postquantize(LayerHooks& layer, const RoutingPlan& plan,
                                   const InspectPostquantizeCall& call) override;
  void inspect_gemm(LayerHooks& layer, const RoutingPlan& plan,
                    const InspectGemmCall& call) override;

  // The session API (hooks/debug.h).
  void step(std::optional<double> loss);
  void end();
  void set_iteration(std::int64_t iteration);
  std::int64_t iteration() const { return iteration_.load(std::memory_order_relaxed); }
  void record_scalar(std::string_view name, double value);
  void log_scalar(std::string_view name, double value, std::int64_t iteration);
  std::vector<NamedValue> log_tensor(std::string_view layer_name, std::string_view tensor_name,
                                     const at::Tensor& tensor,
                                     const LogTensorStatsOptions& options);
  bool log_message(std::string_view message, std::string_view layer_name, LogLevel level,
                   std::string_view once_per);
  const config::Descriptions& descriptions() const { return registry_.descriptions(); }
  const Sink& run_file() const { return *run_file_; }

  // Of one layer, or with an empty name of all others. Null: the default.
  void set_reduction_group(ReductionGroup group, std::string_view layer_name);
  const ReductionGroup& reduction_group() const {
    return chosen_group_ ? chosen_group_ : options_.world;
  }
  void set_weight_group_reduce(bool enabled) { reduce_weights_ = enabled; }

 private:
  // FeatureServices
  StatisticsEngine& statistics() override { return *statistics_; }
  SeriesTable& series() override { return series_; }
  const config::Config& config() const override { return config_; }
  SectionSwitches& sections() override { return *sections_; }
  void announce(std::string_view kind, const std::string& text,
                std::string_view layer_name) override;
  void announce_budget(const std::string& text);
  const InitializeOptions& options() const override { return options_; }
  void record(const Row& row) override;
  void record(LedgerEntry entry) override;
  void record_histogram(HistogramRow histogram) override;
  void record_block(const BlockValue& block) override;
  void stop_run(std::string text) override;
  void log_message(std::string_view message, std::string_view layer_name, LogLevel level) override;

  void record_warning(std::string_view message, std::string_view layer_name);
  void accept();  // throws what initialize refuses
  void make_features();
  void install();
  void wake();
  std::vector<FeatureInstance*> features_of(std::string_view layer_name) const;
  LayerRouting& routing_of(LayerHooks& layer);
  void log_plan(LayerRouting& routing, const RoutingPlan& plan, bool under_recipe);

  // Runs an observing call; a feature that throws in it is switched off.
  template <typename Call>
  void observe(FeatureInstance& feature, std::string_view layer_name, std::string_view call_name,
               Call&& call);
  // To be called while an exception is handled.
  void switch_off(FeatureInstance& feature, std::string_view layer_name,
                  std::string_view call_name);

  Reductions reductions_in(std::int64_t iteration) const;
  // That log_tensor() reduces over; null: nothing was chosen.
  ReductionGroup chosen_group_for(std::string_view layer_name,
                                  const LogTensorStatsOptions& options) const;

  struct NamedScalar {
    std::string name;
    double value;
    std::int64_t iteration;
  };
  // What the loggers get of an iteration.
  struct Logged {
    std::vector<Row> rows;
    std::vector<NamedScalar> scalars;
    std::vector<std::vector<std::int64_t>> decisions = {};  // of all ranks, if they travelled
    double exchange_seconds = 0;                            // in which ranks waited for each other
    std::vector<LedgerEntry> ledger = {};
    std::vector<HistogramRow> histograms = {};
    std::vector<BlockValue> blocks = {};
  };
  Logged collect(const Reductions& reductions);
  void note_number(std::string_view name, double value);
  void decide(const Logged& logged);
  void deliver(const Logged& logged);
  void stop_if_asked();

  const InitializeOptions options_;
  FeatureRegistry registry_;
  config::Config config_;
  MessageLog messages_;
  SeriesTable series_;
  std::unique_ptr<StatisticsEngine> statistics_;
  std::unique_ptr<Sink> run_file_;
  std::vector<std::shared_ptr<ScalarLogger>> loggers_;
  std::optional<SectionSwitches> sections_;
  std::vector<std::unique_ptr<FeatureInstance>> features_;  // one for each enabled entry
  Decisions decisions_;
  std::optional<TerminationFlush> termination_flush_;

  std::uint64_t number_ = 0;        // of hook_points; grows with each install()
  std::uint64_t first_number_ = 0;  // of the first install()
  std::uint64_t jump_number_ = 0;   // of the last one: the iteration has only grown since
  std::atomic<std::int64_t> iteration_{0};
  std::atomic<std::uint64_t> steps_{0};
  std::atomic<int> warnings_{0};
  int budget_changes_ = 0;

  std::mutex layers_mutex_;  // over unnamed_layers_ and the making of a layer's state
  int unnamed_layers_ = 0;

  std::mutex pending_mutex_;
  Logged pending_;  // what features and the program logged themselves
  std::vector<std::string> stop_texts_;
  std::vector<NamedNumber> numbers_;  // of the iteration, for those who decide

  ReductionGroup chosen_group_;  // null: the default
  Reductions::OfLayers layer_groups_;
  bool reduce_weights_ = true;
};

}  // namespace telens::debug
