#include "inspector_cli/tensor_summary.h"

#include <algorithm>
#include <cmath>
#include <tuple>

namespace telens::cli {
namespace {

void keep_largest(std::optional<double>& largest, double value) {
  if (!std::isnan(value)) largest = std::max(largest.value_or(value), value);
}

}  // namespace

TensorSummaries::TensorSummaries(const record::RunReader& run) : run_(run) {
  for (const std::string& name : run.names(record::Dictionary::statistic)) {
    Meaning meaning;
    if (const auto parsed = parse_statistic_name(name)) {
      meaning.statistic = parsed->statistic;
      if (parsed->what_if) meaning.recipe = name_of(*parsed->what_if);
      if (parsed->columnwise)
        meaning.recipe += meaning.recipe.empty() ? "columnwise" : " columnwise";
    }
    meanings_.push_back(std::move(meaning));
  }
}

void TensorSummaries::add(const record::Record& record) {
  if (record.statistic == record::kNoName) return;
  const Meaning& meaning = meanings_[record.statistic];
  Watched& watched = tensors_[{record.layer, record.tensor, record::kNoName, record::kNoName}];
  if (watched.iteration != record.iteration) {
    end_iteration(watched);
    watched.iteration = record.iteration;
    // Records come rank after rank: an iteration that another rank had counts once.
    if (record.iteration > watched.latest) {
      watched.latest = record.iteration;
      ++watched.base.iterations;
    }
  }
  if (!meaning.statistic) return;
  switch (*meaning.statistic) {
    case Statistic::overflows:
      keep_largest(cast_of(watched, record, meaning.recipe).worst.overflows, record.value);
      break;
    case Statistic::underflows:
      keep_largest(cast_of(watched, record, meaning.recipe).worst.underflows, record.value);
      break;
    case Statistic::mse:
      cast_of(watched, record, meaning.recipe).mse = record.value;
      break;
    default:
      add_to_tensor(watched, *meaning.statistic, record);
  }
}

void TensorSummaries::add_to_tensor(Watched& watched, Statistic statistic,
                                    const record::Record& record) {
  TensorSummary& base = watched.base;
  switch (statistic) {
    case Statistic::nonfinite:
      base.nonfinite = base.nonfinite.value_or(0) + record.value;
      if (record.value > 0) {
        base.first_nonfinite =
            std::min(base.first_nonfinite.value_or(record.iteration), record.iteration);
      }
      break;
    case Statistic::min:
    case Statistic::max:
    case Statistic::cur_amax:
      keep_largest(watched.amax, std::abs(record.value));
      keep_largest(base.amax, std::abs(record.value));
      break;
    default:
      return;
  }
  base.gemm = record.gemm;
}

TensorSummaries::Cast& TensorSummaries::cast_of(Watched& watched, const record::Record& record,
                                                const std::string& recipe) {
  const auto found = std::ranges::find_if(watched.casts, [&](const Cast& cast) {
    return cast.worst.gemm == record.gemm && cast.worst.recipe == recipe;
  });
  if (found != watched.casts.end()) return *found;
  Cast& cast = watched.casts.emplace_back();
  cast.worst.gemm = record.gemm;
  cast.worst.recipe = recipe;
  return cast;
}

// mse and amax of one iteration come in any order.
void TensorSummaries::end_iteration(Watched& watched) {
  for (Cast& cast : watched.casts) {
    if (cast.mse && watched.amax.value_or(0) > 0) {
      keep_largest(cast.worst.relative_mse, *cast.mse / (*watched.amax * *watched.amax));
    }
    cast.mse.reset();
  }
  watched.amax.reset();
}

std::vector<TensorSummary> TensorSummaries::worst_first() {
  std::vector<TensorSummary> rows;
  for (auto& [key, watched] : tensors_) {
    end_iteration(watched);
    watched.base.layer = key.layer;
    watched.base.tensor = key.tensor;
    if (watched.casts.empty()) rows.push_back(watched.base);
    for (const Cast& cast : watched.casts) {
      TensorSummary row = watched.base;
      row.gemm = cast.worst.gemm;
      row.recipe = cast.worst.recipe;
      row.overflows = cast.worst.overflows;
      row.underflows = cast.worst.underflows;
      row.relative_mse = cast.worst.relative_mse;
      rows.push_back(std::move(row));
    }
  }
  const auto badness = [](const TensorSummary& row) {
    return std::tuple(row.nonfinite.value_or(0), row.overflows.value_or(0),
                      row.underflows.value_or(0), row.relative_mse.value_or(0));
  };
  const auto place = [](const TensorSummary& row) {
    return std::tie(row.layer, row.tensor, row.gemm, row.recipe);
  };
  std::ranges::sort(rows, [&](const TensorSummary& a, const TensorSummary& b) {
    const auto bad_a = badness(a);
    const auto bad_b = badness(b);
    return bad_a != bad_b ? bad_a > bad_b : place(a) < place(b);
  });
  return rows;
}

}  // namespace telens::cli
