#include "inspector_cli/report/series.h"

#include <algorithm>
#include <array>

#include "core/base/names.h"
#include "core/base/printable.h"
#include "inspector_cli/report/run_choice.h"
#include "inspector_cli/terminal/terminal.h"

namespace telens::cli {
namespace {

// Decides which rank's copy of a reduced value counts: that of the first one with the series.
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

record::RunReader open_run(const std::string& path) {
  return record::RunReader(
      choose_run(path), [](const std::string& line) { note("warning: " + line); },
      record::FindDamage::where_read, record::Opening::in_processes);
}

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

Turn get_order_in_step(const SeriesKey& key, const record::RunReader& run) {
  const auto tensor = tensor_from_name(name_or_empty(run, record::Dictionary::tensor, key.tensor));
  if (!tensor) return {0, key.layer, 0};
  const auto [backward, order] = get_order_in_step(*tensor);
  return {backward ? 1 : 0, backward ? -key.layer : key.layer, order};
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
                     const UseRecord& use) {
  Progress progress(run.record_count());
  ReducedOnce once;
  run.read(
      query,
      [&](int rank, std::span<const record::Record> records) {
        for (const auto& record : records) {
          if (once.counts(rank, record)) use(record);
        }
      },
      std::ref(progress));
}

}  // namespace telens::cli
