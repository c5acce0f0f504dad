// The statistics that plugins define, in one session: what stands between them and the training.
#pragma once

#include <ATen/core/Tensor.h>

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "hooks/statistic_definition.h"
#include "hooks/statistics/catalogue.h"
#include "hooks/statistics_engine.h"

namespace telens::features {

// Calls a definition; the first exception switches it off for the session, and nothing is made of
// what it throws but one notice. Any thread.
class GuardedStatistic {
 public:
  // The row of a plugin's statistic outlives this.
  GuardedStatistic(StatisticId statistic, OnStatisticFailure on_failure)
      : statistic_(statistic), on_failure_(std::move(on_failure)) {}

  const std::string& name() const { return statistic_->name; }
  std::size_t words() const { return statistic_->words; }

  // FP64, words() of them, on the device that the definition left them on. Undefined: it failed, or
  // is off. The notice names the layer, unless that is "", and the tensor.
  at::Tensor add(const at::Tensor& x, std::string_view layer_name, std::string_view tensor);

  // False, or nullopt: the same.
  bool merge(std::span<double> into, std::span<const double> from, std::string_view layer_name,
             std::string_view tensor);
  std::optional<double> finish(std::span<const double> sums, std::string_view layer_name,
                               std::string_view tensor);

 private:
  at::Tensor add_untouched(const at::Tensor& x);
  void check_size(std::size_t sums) const;
  template <typename Call>
  bool guarded(std::string_view call_name, std::string_view layer_name, std::string_view tensor,
               const Call& call);

  const StatisticDefinition& definition() const {
    return *std::get<std::shared_ptr<const StatisticDefinition>>(statistic_->finish);
  }

  const StatisticId statistic_;
  OnStatisticFailure on_failure_;
  std::atomic<bool> off_{false};
};

// The sums of one statistic for a tensor, on the host: reads, micro-batches, then ranks. A part
// that failed spoils the whole, on all ranks: no value is better than that of some parts.
class DefinedSums {
 public:
  DefinedSums() = default;  // for std::variant
  DefinedSums(GuardedStatistic& statistic, std::string_view layer_name, std::string_view tensor)
      : statistic_(&statistic), layer_name_(layer_name), tensor_(tensor) {}

  // Adds a result of add().
  void add(const at::Tensor& sums);

  // Sums of the same statistic; what nothing was added to changes nothing.
  void merge(const DefinedSums& other);

  // Nothing is added; it stays the same statistic's.
  void clear();

  // nullopt: nothing was added, or something failed.
  std::optional<double> finish() const;

  // Appends if it failed, then the sums; for a collective.
  void append_words(std::vector<std::int64_t>& words) const;
  void merge_words(std::span<const std::int64_t> words);

 private:
  void merge_sums(std::vector<double> sums, bool failed);

  GuardedStatistic* statistic_ = nullptr;
  std::string layer_name_;
  std::string tensor_;
  std::vector<double> sums_;  // none: nothing was added
  bool failed_ = false;
};

// Each made when it is first asked for. Any thread.
class DefinedStatistics {
 public:
  // registry: may be null; else it outlives this.
  DefinedStatistics(const StatisticRegistry* registry, OnStatisticFailure on_failure)
      : registry_(registry), on_failure_(std::move(on_failure)) {}

  const config::StatisticDescriptions* descriptions() const {
    return registry_ == nullptr ? nullptr : registry_->descriptions().get();
  }

  // The guarded statistic of a row of the descriptions.
  GuardedStatistic& of(StatisticId statistic);

 private:
  const StatisticRegistry* registry_;
  OnStatisticFailure on_failure_;
  std::mutex mutex_;
  std::map<StatisticId, std::unique_ptr<GuardedStatistic>> used_;
};

}  // namespace telens::features
