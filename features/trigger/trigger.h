// Trigger: watches numbers at the end of iterations, and switches sections, writes the kept data,
// or stops the run.
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdint>
#include <future>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "features/trigger/operand_samples.h"
#include "features/trigger/trigger_options.h"
#include "hooks/decisions.h"
#include "hooks/engine/statistics_list.h"
#include "hooks/feature_registration.h"

namespace telens::features {

class Trigger final : public Observer, private Decider {
 public:
  Trigger(const config::FeatureEntry& entry, FeatureServices& services);

  RoutingCalls routing_calls() const override;
  bool reads_statistics(TensorName tensor, std::int64_t iteration) const override;
  bool may_watch_wgrad() const override { return looks_at(TensorName::wgrad); }
  RoutingAnswer inspect_tensor_enabled(const FeatureCall& at, TensorName tensor) override;
  void observe_tensor(const FeatureCall& at, const ObservedTensor& call,
                      TensorReading& reading) override;
  Decider* decider() override { return this; }
  bool follows_schedules() const override { return true; }
  bool looks_at_attention() const override {
    return std::ranges::any_of(kAttentionTensors, [this](TensorName tensor) {
      return requests_[static_cast<std::size_t>(tensor)].has_value();
    });
  }
  bool can_be_captured() const override { return !operands_; }
  void step(std::int64_t iteration) override;
  void end() override;

 private:
  // Decider
  bool decides(std::int64_t iteration) const override;
  // Returns 0, or 1 + the index of the condition that holds.
  std::int64_t decide(const EndedIteration& ended) override;
  void follow(std::int64_t iteration, std::span<const std::int64_t> wanted) override;

  // One condition, and the values of a step to which it applies.
  struct Watch {
    explicit Watch(const Condition& which) : condition(which) {}

    const Condition& condition;
    std::map<std::uint32_t, ConditionHistory> of_series;  // by Series::index
    std::optional<ConditionHistory> of_number;
  };
  // An observation of this rank that fulfills a condition.
  struct Cause {
    std::string text;
    std::string layer;
    std::set<std::string> others = {};  // layers for which the same condition also held
  };

  bool exhausted() const { return firings_.load() >= options_.max_firings; }
  bool samples(TensorName tensor) const;
  bool looks_at(TensorName tensor) const;
  bool is_about(const Condition& condition, const Series& series) const;
  const std::vector<std::size_t>& get_watches(const Series& series);
  void look_at(const Row& row);
  void look_at(const EndedIteration& ended, const NamedNumber& number);
  void note(std::size_t watch, std::string text, std::string layer);
  std::string cause_in_words(std::int64_t iteration) const;
  std::string act(std::int64_t iteration);
  std::string start_sections(std::int64_t iteration);
  std::string write_operands(std::int64_t iteration);
  void hear_of_writing(bool wait);

  const config::FeatureEntry& entry_;
  const config::Section& section_;
  FeatureServices& services_;
  const TriggerOptions& options_;  // the options of the entry
  const config::Schedule& schedule_;
  std::array<std::optional<StatisticsList>, kAllTensors.size()> requests_;
  std::atomic<bool> warned_{false};

  std::optional<OperandSamples> operands_;

  // Members that only step() uses.
  std::future<std::string> writing_;  // an error, or ""
  std::vector<Watch> watches_;
  std::vector<std::optional<std::vector<std::size_t>>> watches_of_;  // by Series::index
  std::optional<std::size_t> holds_;  // the first condition that holds
  std::optional<Cause> cause_;
  std::optional<std::int64_t> looked_;         // the last iteration for which it decided
  std::optional<std::int64_t> looked_before_;  // the iteration before that
  std::int64_t quiet_until_ = 0;
  std::atomic<std::int64_t> firings_{0};  // the same on all ranks
};

FeatureRegistration trigger(config::StatisticDescriptionsPtr defined);

}  // namespace telens::features
