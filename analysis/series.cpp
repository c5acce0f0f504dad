#include "analysis/series.h"

#include <algorithm>
#include <map>
#include <span>

#include "core/base/names.h"
#include "core/base/text.h"
#include "hooks/statistics/histogram.h"

namespace telens::analysis {

StepOrder get_order_in_step(const Place& place) {
  if (!place.tensor) return {0, place.layer, -1};
  const auto [backward, order] = get_order_in_step(*place.tensor);
  return {backward ? 1 : 0, backward ? -place.layer : place.layer, order};
}

std::optional<double> Series::at(std::int64_t iteration) const {
  const auto found = std::ranges::lower_bound(points, iteration, {}, &Point::iteration);
  if (found == points.end() || found->iteration != iteration) return std::nullopt;
  return found->value;
}

const Point* Series::before(std::int64_t iteration) const {
  const auto found = std::ranges::lower_bound(points, iteration, {}, &Point::iteration);
  return found == points.begin() ? nullptr : &*std::prev(found);
}

namespace {

// Selects one copy of a value that was reduced over ranks: the copy of the first rank that has the
// series.
class ReducedOnce {
 public:
  bool counts(int rank, const record::Record& record) {
    if (record.scope == record::kNoName) return true;
    const SeriesKey key{record.layer, record.tensor, record.gemm, record.statistic};
    return owner_[record.scope].try_emplace(key, rank).first->second == rank;
  }

 private:
  std::unordered_map<std::int32_t, std::unordered_map<SeriesKey, int, SeriesHash>> owner_;
};

}  // namespace

std::size_t SeriesHash::operator()(const SeriesKey& key) const {
  const auto mix = [](std::uint64_t hash, std::int32_t value) {
    constexpr std::uint64_t kGoldenRatio = 0x9E3779B97F4A7C15U;  // 2^64 / phi: Knuth's multiplier
    return (hash ^ static_cast<std::uint32_t>(value)) * kGoldenRatio;
  };
  const std::uint64_t hash = mix(mix(mix(mix(0, key.layer), key.tensor), key.gemm), key.statistic);
  return hash ^ (hash >> 32U);
}

std::string name_or_empty(const record::RunReader& run, record::Dictionary dictionary,
                          std::int32_t id) {
  return id == record::kNoName ? std::string() : run.names(dictionary)[id];
}

StepOrder get_order_in_step(const SeriesKey& key, const record::RunReader& run) {
  const auto tensor = tensor_from_name(name_or_empty(run, record::Dictionary::tensor, key.tensor));
  return get_order_in_step(Place{.layer = key.layer, .tensor = tensor});
}

std::string make_label(const SeriesKey& key, const record::RunReader& run) {
  std::string label = name_or_empty(run, record::Dictionary::layer, key.layer);
  for (const auto& part : {name_or_empty(run, record::Dictionary::tensor, key.tensor),
                           name_or_empty(run, record::Dictionary::gemm, key.gemm)}) {
    if (!part.empty()) label += (label.empty() ? "" : " ") + part;
  }
  return printable(label);
}

void for_each_record(const record::RunReader& run, const record::RecordQuery& query,
                     const UseRecord& use, const record::RunReader::Progress& progress) {
  ReducedOnce once;
  run.read(
      query,
      [&](int rank, std::span<const record::Record> records) {
        for (const auto& record : records) {
          if (once.counts(rank, record)) use(record);
        }
      },
      progress);
}

void for_each_histogram(const record::RunReader& run, const record::RecordQuery& query,
                        const UseHistogram& use) {
  const auto& statistics = run.names(record::Dictionary::statistic);
  std::vector<BinCount> bins;
  run.read_histograms(
      query, [&](int, const record::Record& record, std::span<const record::HistogramBin> stored) {
        if (record.statistic == record::kNoName) return;
        const auto name = parse_histogram_name(statistics[record.statistic]);
        if (!name) return;
        bins.clear();
        for (const auto& [bin, count] : stored) {
          bins.push_back({bin, static_cast<std::int64_t>(count)});
        }
        use(TensorKey{record.layer, record.tensor}, record.iteration, Histogram{*name, bins});
      });
}

std::vector<Point> read_losses(const record::RunReader& run) {
  std::map<int, std::map<std::int64_t, double>> by_rank;  // the last value of an iteration
  const auto& words = run.names(record::Dictionary::word);
  for (const record::Scalar& scalar : run.scalars()) {
    if (scalar.name == record::kNoName || words[scalar.name] != "loss") continue;
    by_rank[scalar.rank][scalar.iteration] = scalar.value;
  }
  std::vector<Point> losses;
  if (by_rank.empty()) return losses;
  for (const auto& [iteration, value] : by_rank.begin()->second) {
    losses.push_back({iteration, value});
  }
  return losses;
}

}  // namespace telens::analysis
