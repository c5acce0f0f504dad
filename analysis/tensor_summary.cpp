#include "analysis/tensor_summary.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <string_view>
#include <tuple>
#include <utility>

namespace telens::analysis {
namespace {

void keep_largest(std::optional<double>& largest, double value) {
  if (!std::isnan(value)) largest = std::max(largest.value_or(value), value);
}

}  // namespace

void TensorSummaries::Worst::add(const CastValues& values, std::optional<double> relative_error) {
  if (values.overflows) keep_largest(overflows, *values.overflows);
  if (values.underflows) keep_largest(underflows, *values.underflows);
  if (relative_error) keep_largest(relative_mse, *relative_error);
}

TensorSummaries::TensorSummaries(const record::RunReader& run, const WarmUp& warm_up)
    : run_(run), warm_up_(warm_up) {
  for (const std::string& name : run.names(record::Dictionary::statistic)) {
    meanings_.push_back(find_meaning(name));
  }
}

TensorSummaries::Meaning TensorSummaries::find_meaning(const std::string& name) const {
  static const std::map<std::string_view, std::optional<double> CastValues::*> of_cast{
      {"overflows%", &CastValues::overflows},
      {"underflows%", &CastValues::underflows},
      {"saturated", &CastValues::saturated},
      {"mse", &CastValues::mse}};
  const auto parsed = parse_statistic_name(name);
  if (!parsed) return {};
  const std::string& statistic = parsed->statistic->name;
  const auto found = of_cast.find(statistic);
  Meaning meaning{
      .of_cast = found == of_cast.end() ? nullptr : found->second,
      .is_nonfinite = statistic == "nonfinite",
      .is_extreme = statistic == "min" || statistic == "max" || statistic == "cur_amax"};
  if (parsed->what_if) meaning.recipe = get_name(*parsed->what_if);
  if (parsed->columnwise) meaning.recipe += meaning.recipe.empty() ? "columnwise" : " columnwise";
  return meaning;
}

void TensorSummaries::begin_iteration(Watched& watched, const record::Record& record) const {
  end_iteration(watched);
  watched.iteration = record.iteration;
  watched.warm_up = warm_up_.covers(record.layer, record.iteration);
  // Records are ordered by rank. An iteration that several ranks recorded counts once.
  if (record.iteration <= watched.latest) return;
  watched.latest = record.iteration;
  ++watched.base.iterations;
  if (watched.warm_up) ++watched.base.warm_up;
}

void TensorSummaries::add(const record::Record& record) {
  if (record.statistic == record::kNoName) return;
  const Meaning& meaning = meanings_[record.statistic];
  Watched& watched = tensors_[{record.layer, record.tensor, record::kNoName, record::kNoName}];
  if (watched.iteration != record.iteration) begin_iteration(watched, record);
  if (meaning.of_cast != nullptr) {
    // If consecutive records of an iteration come from several ranks, the worst value counts.
    std::optional<double>& value = get_cast(watched, record, meaning.recipe).now.*meaning.of_cast;
    if (!value || !(record.value <= *value)) value = record.value;
  } else {
    add_to_tensor(watched, meaning, record);
  }
}

void TensorSummaries::add_to_tensor(Watched& watched, const Meaning& meaning,
                                    const record::Record& record) {
  TensorSummary& base = watched.base;
  if (meaning.is_nonfinite) {
    // A damaged value could make the sum NaN, which cannot be sorted.
    base.nonfinite = base.nonfinite.value_or(0) + (std::isfinite(record.value) ? record.value : 0);
    if (record.value > 0) {
      base.first_nonfinite =
          std::min(base.first_nonfinite.value_or(record.iteration), record.iteration);
    }
  }
  if (meaning.is_extreme) {
    keep_largest(watched.amax, std::abs(record.value));
    keep_largest(base.amax, std::abs(record.value));
  }
  if (meaning.is_nonfinite || meaning.is_extreme) base.gemm = record.gemm;
}

TensorSummaries::Cast& TensorSummaries::get_cast(Watched& watched, const record::Record& record,
                                                 const std::string& recipe) {
  const auto found = std::ranges::find_if(watched.casts, [&](const Cast& cast) {
    return cast.row.gemm == record.gemm && cast.row.recipe == recipe;
  });
  if (found != watched.casts.end()) return *found;
  Cast& cast = watched.casts.emplace_back();
  cast.row.gemm = record.gemm;
  cast.row.recipe = recipe;
  return cast;
}

// Called when all values of the iteration are known, because they arrive in any order.
void TensorSummaries::end_iteration(Cast& cast, const Watched& watched) {
  const CastValues now = std::exchange(cast.now, {});
  if (!now.any()) return;
  std::optional<double> relative_error;
  if (now.mse && watched.amax.value_or(0) > 0) {
    relative_error = *now.mse / (*watched.amax * *watched.amax);
  }
  (watched.warm_up ? cast.in_warm_up : cast.usual).add(now, relative_error);
  // If a scale was rounded down, the amax exceeds its range without losing anything.
  const bool clips = now.saturated.value_or(1) > 0;
  const auto finite = [](std::optional<double> value) {
    return value && std::isfinite(*value) ? *value : 0.0;
  };
  const double clipped = clips ? finite(now.overflows) : 0;
  if (now.overflows) cast.row.clipped.add(clipped, watched.warm_up);
  if (now.overflows || now.underflows) {
    cast.row.lost.add(lost_share(finite(now.underflows), clipped), watched.warm_up);
  }
  if (relative_error) cast.error.add(finite(relative_error), watched.warm_up);
}

void TensorSummaries::end_iteration(Watched& watched) {
  for (Cast& cast : watched.casts) end_iteration(cast, watched);
  watched.amax.reset();
}

TensorSummary TensorSummaries::get_row(const Watched& watched, const Cast& cast) {
  TensorSummary row = watched.base;
  row.gemm = cast.row.gemm;
  row.recipe = cast.row.recipe;
  row.lost = cast.row.lost;
  row.clipped = cast.row.clipped;
  const bool only_warm_up = watched.base.iterations == watched.base.warm_up;
  const Worst& worst = only_warm_up ? cast.in_warm_up : cast.usual;
  row.overflows = worst.overflows;
  row.underflows = worst.underflows;
  row.relative_mse = worst.relative_mse;
  row.sort_key.severity = row.lost.value();
  row.sort_key.tie_breaker = cast.error.value();
  row.sort_key.only_warm_up = only_warm_up;
  return row;
}

std::vector<TensorSummary> TensorSummaries::worst_first() {
  std::vector<TensorSummary> rows;
  for (auto& [key, watched] : tensors_) {
    end_iteration(watched);
    watched.base.layer = key.layer;
    watched.base.tensor = key.tensor;
    watched.base.sort_key.first_bad = watched.base.first_nonfinite;
    watched.base.sort_key.order_in_step = get_order_in_step(key, run_);
    if (watched.casts.empty()) rows.push_back(watched.base);
    for (const Cast& cast : watched.casts) rows.push_back(get_row(watched, cast));
  }
  const auto place = [](const TensorSummary& row) {
    return std::tie(row.layer, row.tensor, row.gemm, row.recipe);
  };
  std::ranges::sort(rows, [&](const TensorSummary& a, const TensorSummary& b) {
    if (worse(a.sort_key, b.sort_key)) return true;
    return !worse(b.sort_key, a.sort_key) && place(a) < place(b);
  });
  return rows;
}

namespace {

using record::BlockRow;

bool is_worse(double a, double b) { return a > b || (std::isnan(a) && !std::isnan(b)); }

}  // namespace

std::vector<WorstBlock> worst_blocks(const record::RunReader& run,
                                     const record::RecordQuery& query) {
  using Key = std::tuple<int, std::int32_t, std::int32_t, std::int32_t, std::int32_t, std::int32_t>;
  std::map<Key, WorstBlock> blocks;
  run.read_rows(query, [&](const BlockRow& row) {
    const auto [entry, is_new] = blocks.try_emplace(
        {row.rank, row.layer, row.tensor, row.statistic, row.block_row, row.block_column},
        WorstBlock{row, {}});
    WorstBlock& block = entry->second;
    if (is_worse(row.value, block.worst.value)) block.worst = row;
    block.iterations.insert(row.iteration);
  });
  std::vector<WorstBlock> sorted;
  for (auto& [key, block] : blocks) sorted.push_back(std::move(block));
  std::ranges::stable_sort(sorted, [](const WorstBlock& a, const WorstBlock& b) {
    if (a.worst.statistic != b.worst.statistic) return a.worst.statistic < b.worst.statistic;
    return is_worse(a.worst.value, b.worst.value);
  });
  return sorted;
}

}  // namespace telens::analysis
