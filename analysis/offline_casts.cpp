#include "analysis/offline_casts.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <set>
#include <tuple>

#include "analysis/series.h"
#include "core/base/names.h"
#include "hooks/statistics/catalogue.h"

namespace telens::analysis {
namespace {

using record::Dictionary;

// A tensor in one iteration, merged over ranks.
struct Moment {
  Bounds amax;
  Bounds scale;
  bool exact = true;
  bool warm_up = false;
  CastBounds cast;
  TensorSums tensor;    // only if exact
  CastSums exact_cast;  // only if exact
};

using Moments = std::map<std::int64_t, Moment>;  // by iteration
using TensorMoments = std::map<TensorKey, Moments>;

FormatId format_for(Fp8Choice choice, const record::RunReader& run, const TensorKey& key) {
  if (choice != Fp8Choice::hybrid) {
    return choice == Fp8Choice::e4m3 ? FormatId::e4m3 : FormatId::e5m2;
  }
  const auto known = tensor_from_name(name_or_empty(run, Dictionary::tensor, key.tensor));
  const bool backward = known && get_order_in_step(*known).backward;
  return backward ? FormatId::e5m2 : FormatId::e4m3;
}

// Reads the amaxes over all ranks, from which find_scales() derives the scales.
TensorMoments read_amaxes(const record::RunReader& run, const record::RecordQuery& query) {
  TensorMoments tensors;
  for_each_histogram(run, query,
                     [&](const TensorKey& key, std::int64_t iteration, const Histogram& histogram) {
                       Moment& moment = tensors[key][iteration];
                       const Bounds amax = compute_amax(histogram);
                       moment.amax.low = larger(moment.amax.low, amax.low);
                       moment.amax.high = larger(moment.amax.high, amax.high);
                       moment.exact &= histogram.name.bins == HistogramBins::codes;
                     });
  return tensors;
}

// Fills in the bounds of the scales. The upper bound of the amax gives the lower bound of the
// scale. Amaxes that keep the scale (zero or non-finite) are exact.
void find_scales(Moments& moments, const WhatIfRecipe& recipe, FormatId format) {
  WhatIfScale largest(recipe, format);
  WhatIfScale smallest(recipe, format);
  bool knows_amax = recipe.amax == AmaxSource::current;
  for (auto& [iteration, moment] : moments) {
    moment.warm_up = !knows_amax;
    knows_amax = knows_amax || moment.amax.high > 0;
    moment.scale.high = largest.next(static_cast<float>(moment.amax.low));
    moment.scale.low = smallest.next(static_cast<float>(moment.amax.high));
    moment.exact &= moment.scale.low == moment.scale.high;
  }
}

// Adds the statistics of all ranks. Requires the scales.
void read_casts(const record::RunReader& run, const record::RecordQuery& query,
                const OfflineCast& cast, TensorMoments& tensors) {
  for_each_histogram(
      run, query, [&](const TensorKey& key, std::int64_t iteration, const Histogram& histogram) {
        Moment& moment = tensors[key][iteration];
        const FormatId format = format_for(cast.format, run, key);
        merge(moment.cast, compute_cast_bounds(histogram, format, moment.scale));
        if (!moment.exact) return;
        merge(moment.tensor, compute_tensor_sums(histogram));
        merge(moment.exact_cast,
              compute_cast_sums(histogram, format, static_cast<float>(moment.scale.low)));
      });
}

Bounds to_percent(const Bounds& counts, std::int64_t numel) {
  const double unit = numel > 0 ? 100.0 / static_cast<double>(numel) : 0.0;
  return {counts.low * unit, counts.high * unit};
}

OfflineCastRow get_row(std::int64_t iteration, const Moment& moment) {
  OfflineCastRow row;
  row.iteration = iteration;
  row.warm_up = moment.warm_up ? 1 : 0;
  row.nonfinite = moment.cast.nonfinite;
  row.overflows = to_percent(moment.cast.overflows, moment.cast.numel);
  row.underflows = to_percent(moment.cast.underflows, moment.cast.numel);
  row.amax = moment.amax;
  row.scale = moment.scale;
  if (!moment.exact) return row;
  row.overflows.low = row.overflows.high = finish(statistic("overflows%"), moment.exact_cast);
  row.underflows.low = row.underflows.high = finish(statistic("underflows%"), moment.exact_cast);
  const double amax = moment.amax.high;
  if (amax > 0) row.relative_mse = finish(statistic("mse"), moment.exact_cast) / (amax * amax);
  const double error = moment.exact_cast.squared_error;
  if (std::isfinite(error) && error > 0) {
    row.sqnr_db = 10 * std::log10(moment.tensor.sum_squares / error);
  }
  return row;
}

void keep(std::optional<double>& kept, const std::optional<double>& value, bool largest) {
  if (!value || std::isnan(*value)) return;
  if (!kept) kept = value;
  kept = largest ? std::max(*kept, *value) : std::min(*kept, *value);
}

void keep_largest(Bounds& kept, const Bounds& bounds) {
  kept.low = std::max(kept.low, bounds.low);
  kept.high = std::max(kept.high, bounds.high);
}

// Returns the share of the tensor's energy that the cast lost, or a lower bound from the lost
// elements if the energy is unknown.
double size_of(const OfflineCastRow& row) {
  if (row.sqnr_db) return std::pow(10, -*row.sqnr_db / 10);
  return row.relative_mse ? 0 : lost_share(row.underflows.low, row.overflows.low);
}

// Returns the worst iteration per statistic. Warm-up counts only if other iterations do not exist.
OfflineCastRow find_worst(const Moments& moments) {
  const bool only_warm_up =
      std::ranges::all_of(moments, [](const auto& moment) { return moment.second.warm_up; });
  OfflineCastRow worst;
  worst.iterations = static_cast<std::int64_t>(moments.size());
  Severity severity;
  for (const auto& [iteration, moment] : moments) {
    const OfflineCastRow row = get_row(iteration, moment);
    worst.warm_up += row.warm_up;
    worst.nonfinite += row.nonfinite;
    keep_largest(worst.amax, row.amax);
    severity.add(size_of(row), moment.warm_up);
    if (row.nonfinite > 0 && !worst.sort_key.first_bad) worst.sort_key.first_bad = iteration;
    if (moment.warm_up && !only_warm_up) continue;
    keep_largest(worst.overflows, row.overflows);
    keep_largest(worst.underflows, row.underflows);
    keep(worst.relative_mse, row.relative_mse, true);
    keep(worst.sqnr_db, row.sqnr_db, false);
  }
  worst.sort_key.severity = severity.value();
  worst.sort_key.tie_breaker = lost_share(worst.underflows.high, worst.overflows.high);
  worst.sort_key.only_warm_up = only_warm_up;
  return worst;
}

void sort_worst_first(std::vector<OfflineCastRow>& rows) {
  std::ranges::stable_sort(rows, [](const OfflineCastRow& a, const OfflineCastRow& b) {
    return worse(a.sort_key, b.sort_key);
  });
}

// Returns true if iterations are missing. Delayed scaling also depends on the missing ones.
bool has_gaps(const TensorMoments& tensors) {
  return std::ranges::any_of(tensors, [](const auto& tensor) {
    const auto& [key, moments] = tensor;
    // Unsigned, because iterations of a damaged file may be more than 2^63 apart.
    const std::uint64_t last = static_cast<std::uint64_t>(moments.rbegin()->first) -
                               static_cast<std::uint64_t>(moments.begin()->first);
    return last >= moments.size();
  });
}

}  // namespace

OfflineCasts apply_offline_cast(const record::RunReader& run, const record::RecordQuery& query,
                                const OfflineCast& cast, bool each_iteration) {
  TensorMoments tensors = read_amaxes(run, query);
  for (auto& [key, moments] : tensors) {
    find_scales(moments, cast.recipe, format_for(cast.format, run, key));
  }
  read_casts(run, query, cast, tensors);

  OfflineCasts result;
  for (const auto& [key, moments] : tensors) {
    const auto add = [&, key = key](OfflineCastRow row) {
      row.layer = key.layer;
      row.tensor = key.tensor;
      row.format = format_for(cast.format, run, key);
      result.rows.push_back(std::move(row));
    };
    for (const auto& [iteration, moment] : moments) {
      result.bounds |= !moment.exact;
      if (each_iteration) add(get_row(iteration, moment));
    }
    if (!each_iteration) add(find_worst(moments));
  }
  if (!each_iteration) sort_worst_first(result.rows);
  if (cast.recipe.amax != AmaxSource::current && has_gaps(tensors)) {
    result.notes.emplace_back(
        "not every iteration was recorded: delayed scaling would have known amaxes that this run "
        "does not; record with freq: 1 for exact scales");
  }
  return result;
}

}  // namespace telens::analysis
