// A debug session, from initialize to end_debug.
#pragma once

#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "hooks/delivery.h"
#include "hooks/feature_registry.h"
#include "hooks/feature_set.h"
#include "hooks/layer_listener.h"
#include "hooks/notices.h"
#include "hooks/outbox.h"
#include "hooks/termination_flush.h"

namespace telens::debug {

class Session final : private FeatureServices {
 public:
  // Throws ConfigError and UsageError; nothing is installed then.
  explicit Session(InitializeOptions options);
  ~Session() override;  // flushes everything

  // The session API (hooks/debug.h).
  void step(std::optional<double> loss);
  void end();
  void set_iteration(std::int64_t iteration);
  std::int64_t iteration() const { return layers_.iteration(); }
  void record_scalar(std::string_view name, double value);
  void log_scalar(std::string_view name, double value, std::int64_t iteration);
  std::vector<NamedValue> log_tensor(std::string_view layer_name, std::string_view tensor_name,
                                     const at::Tensor& tensor,
                                     const LogTensorStatsOptions& options);
  void log_message(std::string_view message, std::string_view layer_name, LogLevel level,
                   std::string_view once_per);
  const config::Descriptions& descriptions() const { return registry_.descriptions(); }
  const StatisticRegistry& defined_statistics() const { return registry_.statistics(); }
  const Sink& run_file() const { return delivery_->run_file(); }

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
  SectionSwitches& sections() override { return features_.sections(); }
  const InitializeOptions& options() const override { return options_; }
  void record(const Row& row) override { outbox_.add(row); }
  void record(LedgerEntry entry) override { outbox_.add(std::move(entry)); }
  void record_histogram(HistogramRow histogram) override { outbox_.add(std::move(histogram)); }
  void record_block(const BlockValue& block) override { outbox_.add(block); }
  void stop_run(std::string text) override;
  void announce(std::string_view kind, const std::string& text,
                std::string_view layer_name) override {
    notices_.announce(kind, text, layer_name);
  }
  void log_message(std::string_view message, std::string_view layer_name, LogLevel level) override {
    notices_.message(message, layer_name, level);
  }

  void accept();  // throws what initialize refuses
  void flush();

  Reductions reductions_in(std::int64_t iteration);
  // That log_tensor() reduces over; null: nothing was chosen.
  ReductionGroup chosen_group_for(std::string_view layer_name,
                                  const LogTensorStatsOptions& options) const;

  void note_number(std::string_view name, double value);
  void decide(const Logged& logged, std::span<const std::vector<std::int64_t>> words_of_ranks);
  // What the engine has collected, before what was logged since the last call.
  Logged take_logged(std::vector<Row> collected);
  void stop_if_asked();

  const InitializeOptions options_;
  FeatureRegistry registry_;
  config::Config config_;
  SeriesTable series_;
  Notices notices_;
  FeatureGuard guard_;
  std::optional<Delivery> delivery_;
  std::unique_ptr<StatisticsEngine> statistics_;
  Outbox outbox_;
  FeatureSet features_;  // which may use all of the above while it ends
  LayerListener layers_;
  std::optional<TerminationFlush> termination_flush_;

  std::mutex pending_mutex_;
  std::vector<std::string> stop_texts_;
  std::vector<NamedNumber> numbers_;  // of the iteration, for those who decide

  ReductionGroup chosen_group_;  // null: the default
  Reductions::OfLayers layer_groups_;
  bool reduce_weights_ = true;
};

}  // namespace telens::debug
