// The sums of a tensor in one iteration on the host, merged over micro-batches and ranks, and the
// sums of custom statistics. No LibTorch.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "core/ops/statistics_layout.h"
#include "hooks/statistic_definition.h"
#include "hooks/statistics/catalogue.h"
#include "hooks/statistics/requests.h"
#include "hooks/statistics/scales.h"
#include "hooks/statistics_engine.h"

namespace telens::features {

// Calls a plugin's definition. The first exception disables the statistic for the session and is
// reported. Thread-safe.
class GuardedStatistic {
 public:
  // `statistic` must outlive this object.
  GuardedStatistic(StatisticId statistic, OnStatisticFailure on_failure)
      : statistic_(statistic), on_failure_(std::move(on_failure)) {}

  const std::string& name() const { return statistic_->name; }
  std::size_t words() const { return statistic_->words; }

  // Returns the sums of x: FP64 [words()], on the device of the definition's result. Returns an
  // undefined tensor if the definition failed or is disabled. `layer_name` ("" if unknown) and
  // `tensor` are used in the report.
  TensorHandle add(const TensorHandle& x, std::string_view layer_name, std::string_view tensor);

  // Return false or nullopt if the definition failed or is disabled.
  bool merge(std::span<double> into, std::span<const double> from, std::string_view layer_name,
             std::string_view tensor);
  std::optional<double> finish(std::span<const double> sums, std::string_view layer_name,
                               std::string_view tensor);

 private:
  TensorHandle add_untouched(const TensorHandle& x);
  void check_size(std::size_t sums) const;
  template <typename Call>
  bool guarded(std::string_view call_name, std::string_view layer_name, std::string_view tensor,
               const Call& call);

  const StatisticFunctions& definition() const {
    return *std::get<std::shared_ptr<const StatisticFunctions>>(statistic_->finish);
  }

  const StatisticId statistic_;
  OnStatisticFailure on_failure_;
  std::atomic<bool> off_{false};
};

// The sums of a statistic of a tensor on the host, merged over reads, micro-batches and ranks. If
// any part fails, no rank returns a value, because a partial value would mislead.
class DefinedSums {
 public:
  DefinedSums() = default;  // required by std::variant
  DefinedSums(GuardedStatistic& statistic, std::string_view layer_name, std::string_view tensor)
      : statistic_(&statistic), layer_name_(layer_name), tensor_(tensor) {}

  // Merges a result of GuardedStatistic::add().
  void add(const TensorHandle& sums);

  // Merges sums of the same statistic. Empty sums have no effect.
  void merge(const DefinedSums& other);

  // Removes all sums but keeps the statistic.
  void clear();

  // Returns the value; nullopt if nothing was added or a part failed.
  std::optional<double> finish() const;

  // Serializes for a collective: one word for failure, then the sums.
  void append_words(std::vector<std::int64_t>& words) const;
  void merge_words(std::span<const std::int64_t> words);

 private:
  void merge_sums(std::vector<double> sums, bool failed);

  GuardedStatistic* statistic_ = nullptr;
  std::string layer_name_;
  std::string tensor_;
  std::vector<double> sums_;  // empty if nothing was added
  bool failed_ = false;
};

// The guarded statistics of a session. Thread-safe.
class DefinedStatistics {
 public:
  // `registry` may be null. It must outlive this object.
  DefinedStatistics(const StatisticRegistry* registry, OnStatisticFailure on_failure)
      : registry_(registry), on_failure_(std::move(on_failure)) {}

  const config::StatisticDescriptions* descriptions() const {
    return registry_ == nullptr ? nullptr : registry_->descriptions().get();
  }

  // Returns the guarded statistic of a description; creates it at the first call.
  GuardedStatistic& of(StatisticId statistic);

 private:
  const StatisticRegistry* registry_;
  OnStatisticFailure on_failure_;
  std::mutex mutex_;
  std::map<StatisticId, std::unique_ptr<GuardedStatistic>> used_;
};

using AnySums = std::variant<TensorSums, CastSums, BlockRanges, ScaleSums, DefinedSums, ScoreSums>;

// Identifies sums within a tensor. Keys with equal hashes are treated as equal across ranks.
struct SumsKey {
  StatisticSource source = StatisticSource::tensor;
  CastRequest cast = {};            // set for sums of a cast, and of its scale
  BlockShape blocks = {};           // set for sums of blocks
  StatisticId statistic = nullptr;  // set for a plugin's statistic

  friend bool operator==(const SumsKey&, const SumsKey&) = default;

  // Returns a hash that is equal on all machines.
  std::uint64_t hash() const;
};

// All sums of a tensor. Sums of the tensor itself cover all micro-batches; sums of casts and blocks
// cover the micro-batches in which a feature requested them.
class Totals {
 public:
  struct Slot {
    SumsKey key;
    AnySums sums;
  };

  Totals() : slots_{{SumsKey{}, TensorSums{}}} {}

  // Returns the sums of the key. Adds `of_nothing` if the key is new.
  template <typename Sums>
  Sums& find_or_add(const SumsKey& key, Sums of_nothing = {}) {
    for (Slot& slot : slots_) {
      if (slot.key == key) return std::get<Sums>(slot.sums);
    }
    return std::get<Sums>(slots_.emplace_back(key, std::move(of_nothing)).sums);
  }

  bool empty() const { return tensor().numel == 0; }
  const TensorSums& tensor() const { return std::get<TensorSums>(slots_.front().sums); }

  // Returns the value of a request. The sums of its `set` must have been added. Returns nullopt if
  // the value is undefined for these reads.
  std::optional<double> value(const StatisticRequest& request, const RequestSet& set) const;

  std::vector<Slot>& slots() { return slots_; }

 private:
  std::vector<Slot> slots_;  // the first slot has the sums of the tensor itself
};

}  // namespace telens::features
