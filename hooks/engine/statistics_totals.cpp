#include "hooks/engine/statistics_totals.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <utility>

#include "core/base/error.h"
#include "core/base/fnv1a.h"
#include "hooks/observer.h"
#include "hooks/statistics/catalogue.h"
#include "hooks/tensor_ops.h"

namespace telens::features {

template <typename Call>
bool GuardedStatistic::guarded(std::string_view call_name, std::string_view layer_name,
                               std::string_view tensor, const Call& call) {
  if (off_.load(std::memory_order_relaxed)) return false;
  try {
    call();
    return true;
  } catch (...) {
    rethrow_interruption();
    if (off_.exchange(true) || !on_failure_) return false;
    const std::string layer = layer_name.empty() ? "" : fmt::format(" in layer '{}'", layer_name);
    on_failure_(fmt::format("the statistic '{}' of {}{}, {} of {}: {}; it is disabled for the "
                            "rest of the session, and the training continues",
                            name(), statistic_->owner, layer, call_name, tensor,
                            message_of_current_exception()),
                layer_name);
    return false;
  }
}

// Throws UsageError if a rank sent a different number of sums.
void GuardedStatistic::check_size(std::size_t sums) const {
  if (sums == words()) return;
  raise<UsageError>("another rank has {} sums, this rank has {}; load the same plugin on all ranks",
                    sums, words());
}

// Calls the definition. Throws if it changes the tensor.
TensorHandle GuardedStatistic::add_untouched(const TensorHandle& x) {
  if (tensor_ops::is_capturing(x)) return definition().compute_sums(x);
  RandomState random(x.device());
  MutationGuard guard;
  guard.add(x);
  TensorHandle sums;
  try {
    sums = definition().compute_sums(x);
  } catch (...) {
    random.restore();
    throw;
  }
  if (random.restore()) {
    raise<UsageError>("it drew random numbers, which the training would miss; they are put back");
  }
  if (guard.was_written()) {
    raise<UsageError>("it wrote to the tensor, whose values are lost; work on a copy (x.clone())");
  }
  return sums;
}

TensorHandle GuardedStatistic::add(const TensorHandle& x, std::string_view layer_name,
                                   std::string_view tensor) {
  TensorHandle sums;
  guarded("add", layer_name, tensor, [&] {
    const TensorHandle given = add_untouched(x);
    const auto count = given.defined() ? given.numel() : 0;
    if (count != static_cast<std::int64_t>(words())) {
      raise<UsageError>("it returned {} values, and its size is {}", count, words());
    }
    // The result may be a view of the tensor, so it is copied.
    sums = tensor_ops::copy_as_doubles(given);
  });
  return sums;
}

bool GuardedStatistic::merge(std::span<double> into, std::span<const double> from,
                             std::string_view layer_name, std::string_view tensor) {
  return guarded("merge", layer_name, tensor, [&] {
    check_size(into.size());
    check_size(from.size());
    definition().merge(into, from);
  });
}

std::optional<double> GuardedStatistic::finish(std::span<const double> sums,
                                               std::string_view layer_name,
                                               std::string_view tensor) {
  std::optional<double> value;
  guarded("finish", layer_name, tensor, [&] {
    check_size(sums.size());
    value = definition().finish(sums);
  });
  return value;
}

void DefinedSums::add(const TensorHandle& sums) {
  std::vector<double> values;
  if (sums.defined()) {
    const TensorHandle host = tensor_ops::to_host(sums);
    const auto* data = host.const_data_ptr<double>();
    values.assign(data, data + host.numel());
  }
  merge_sums(std::move(values), !sums.defined());
}

void DefinedSums::merge(const DefinedSums& other) {
  if (statistic_ == nullptr) *this = {*other.statistic_, other.layer_name_, other.tensor_};
  merge_sums(other.sums_, other.failed_);
}

void DefinedSums::merge_sums(std::vector<double> sums, bool failed) {
  failed_ = failed_ || failed;
  if (failed_ || sums.empty()) return;
  if (sums_.empty()) {
    sums_ = std::move(sums);
  } else {
    failed_ = !statistic_->merge(sums_, sums, layer_name_, tensor_);
  }
}

void DefinedSums::clear() {
  sums_.clear();
  failed_ = false;
}

std::optional<double> DefinedSums::finish() const {
  if (failed_ || sums_.empty()) return std::nullopt;
  return statistic_->finish(sums_, layer_name_, tensor_);
}

void DefinedSums::append_words(std::vector<std::int64_t>& words) const {
  words.push_back(failed_ ? 1 : 0);
  for (const double each : sums_) words.push_back(std::bit_cast<std::int64_t>(each));
}

void DefinedSums::merge_words(std::span<const std::int64_t> words) {
  std::vector<double> sums;
  for (const std::int64_t each : words.subspan(1)) sums.push_back(std::bit_cast<double>(each));
  merge_sums(std::move(sums), words.front() != 0);
}

GuardedStatistic& DefinedStatistics::of(StatisticId statistic) {
  const std::lock_guard lock(mutex_);
  std::unique_ptr<GuardedStatistic>& known = used_[statistic];
  if (!known) known = std::make_unique<GuardedStatistic>(statistic, on_failure_);
  return *known;
}

namespace {

SumsKey make_key(const StatisticRequest& request, const RequestSet& set) {
  SumsKey key{.source = request.name.statistic->source()};
  if (request.cast) key.cast = set.casts()[*request.cast];
  if (request.block_cast) key.cast = set.block_casts()[*request.block_cast];
  if (request.blocks) key.blocks = set.blocks()[*request.blocks];
  if (request.defined) key.statistic = set.defined()[*request.defined];
  return key;
}

}  // namespace

std::uint64_t SumsKey::hash() const {
  std::uint64_t hash = statistic == nullptr ? 0 : fnv1a(statistic->name);
  for (const std::int64_t part :
       {static_cast<std::int64_t>(source), static_cast<std::int64_t>(cast.recipe),
        static_cast<std::int64_t>(cast.format), std::int64_t{cast.columnwise},
        std::int64_t{cast.altered}, blocks.size, std::int64_t{blocks.dims}}) {
    hash = mixed(hash, static_cast<std::uint64_t>(part));
  }
  return hash;
}

std::optional<double> Totals::value(const StatisticRequest& request, const RequestSet& set) const {
  const auto slot = std::ranges::find(slots_, make_key(request, set), &Slot::key);
  return std::visit(
      [&]<typename Sums>(const Sums& sums) -> std::optional<double> {
        if constexpr (std::is_same_v<Sums, DefinedSums>) {
          return sums.finish();
        } else {
          return finish(request.name.statistic, sums);
        }
      },
      slot->sums);
}

}  // namespace telens::features
