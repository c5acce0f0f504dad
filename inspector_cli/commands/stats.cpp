// telens stats: tensors by severity, or chosen statistics over the iterations.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <array>
#include <cmath>
#include <memory>
#include <numeric>
#include <string_view>

#include "analysis/events.h"
#include "analysis/rank_spread.h"
#include "analysis/series.h"
#include "analysis/severity.h"
#include "analysis/tensor_summary.h"
#include "core/base/error.h"
#include "hooks/statistics/statistic_name.h"
#include "inspector_cli/commands/options.h"
#include "inspector_cli/commands/subcommands.h"
#include "inspector_cli/report/analysis_display.h"
#include "inspector_cli/report/first_trouble.h"
#include "inspector_cli/report/open_run.h"
#include "inspector_cli/terminal/table.h"
#include "inspector_cli/terminal/terminal.h"

namespace telens::cli {
namespace {

using analysis::badness;
using analysis::catalogue_rows;
using analysis::is_bad;
using analysis::name_or_empty;
using analysis::SeriesHash;
using analysis::SeriesKey;
using analysis::Severity;
using analysis::SortKey;
using analysis::TensorSummaries;
using analysis::TensorSummary;
using analysis::UseRecord;
using analysis::WarmUp;

using record::Dictionary;

constexpr const char* kRank = "rank";
constexpr const char* kDifference = "difference";

struct StatsOptions {
  std::string run;
  Selection selection;
  TableOptions table;
  std::string by;  // "rank", or "" to merge ranks
};

template <typename T>
Cell cell(const std::optional<T>& value) {
  return value ? Cell(*value) : Cell();
}

Cell count_cell(const std::optional<double>& value) {
  constexpr double kExact = 0x1p53;  // a damaged file may hold any number as a count
  if (value && !(std::abs(*value) <= kExact)) return Cell(*value);
  return value ? Cell(static_cast<std::int64_t>(*value)) : Cell();
}

// Reads the run once, for the table and for the finder if it is not nullptr.
struct Source {
  const record::RunReader& run;
  const WarmUp& warm_up;
  const record::RecordQuery& query;
  FirstTroubleFinder* finder = nullptr;

  void for_each(const UseRecord& use) const {
    if (finder == nullptr) return for_each_record(run, query, use);
    for_each_record(run, query, *finder, use);
  }
};

// Returns true if the run has a statistic of the columns of tensor_table.
bool has_tensor_columns(const record::RunReader& run) {
  constexpr std::array<std::string_view, 7> kShown{"nonfinite", "overflows%", "underflows%", "mse",
                                                   "cur_amax",  "min",        "max"};
  return std::ranges::any_of(run.names(Dictionary::statistic), [&](const std::string& name) {
    const auto parsed = parse_statistic_name(name);
    return parsed && std::ranges::find(kShown, parsed->statistic->name) != kShown.end();
  });
}

// Returns all statistics of the run.
record::RecordQuery::Ids all_statistics(const record::RunReader& run) {
  std::vector<std::int32_t> ids(run.names(Dictionary::statistic).size());
  std::iota(ids.begin(), ids.end(), 0);
  return ids;
}

Table tensor_table(const Source& source) {
  const record::RunReader& run = source.run;
  TensorSummaries summaries(run, source.warm_up);
  source.for_each([&](const record::Record& record) { summaries.add(record); });
  Table table({"layer", "tensor", "gemm", "recipe", "nonfinite", "first", "overflows%",
               "underflows%", "mse/amax^2", "amax", "iterations", "warm-up"});
  for (const TensorSummary& row : summaries.worst_first()) {
    table.add({name_or_empty(run, Dictionary::layer, row.layer),
               name_or_empty(run, Dictionary::tensor, row.tensor),
               name_or_empty(run, Dictionary::gemm, row.gemm), row.recipe,
               count_cell(row.nonfinite), cell(row.first_nonfinite), cell(row.overflows),
               cell(row.underflows), cell(row.relative_mse), cell(row.amax), row.iterations,
               row.warm_up});
  }
  table.drop_where_empty("recipe");
  table.may_lack({"iterations", "amax", "mse/amax^2", "warm-up", "first"});
  table.drop_where_empty("warm-up");
  return table;
}

// Summary of finite values.
struct Values {
  std::int64_t finite = 0;
  double lowest = INFINITY;
  double highest = -INFINITY;
  double sum = 0;

  void add(double value) {
    ++finite;
    lowest = std::min(lowest, value);
    highest = std::max(highest, value);
    sum += value;
  }
};

// A statistic of a tensor over iterations. Warm-up values are only counted if other values do not
// exist.
struct SeriesSummary {
  SeriesKey key;
  SortKey sort_key;
  Severity severity;
  Values usual;
  Values in_warm_up;
  std::int64_t records = 0;
  std::int64_t nonfinite = 0;
  double last = 0;
  std::int64_t last_iteration = 0;

  void add(StatisticId statistic, const record::Record& record, bool warm_up) {
    ++records;
    last = record.value;
    last_iteration = record.iteration;
    severity.add(badness(statistic, record.value), warm_up);
    if (is_bad(statistic, record.value)) {
      sort_key.first_bad =
          std::min(sort_key.first_bad.value_or(record.iteration), record.iteration);
    }
    if (std::isfinite(record.value)) {
      (warm_up ? in_warm_up : usual).add(record.value);
    } else {
      ++nonfinite;
    }
  }
  const Values& shown() const { return severity.only_warm_up() ? in_warm_up : usual; }
};

// Breaks ties, for example by the lowest headroom if no tensor outgrew its scale.
double get_tie_breaker(StatisticId statistic, const SeriesSummary& summary) {
  if (summary.shown().finite == 0) return 0;
  const bool low_is_worse = statistic != nullptr && statistic->worse == config::Worse::below_zero;
  return low_is_worse ? -summary.shown().lowest : summary.severity.largest();
}

std::vector<SeriesSummary> worst_series_first(const Source& source) {
  const record::RunReader& run = source.run;
  std::unordered_map<SeriesKey, SeriesSummary, SeriesHash> summaries;
  const std::vector<StatisticId> statistics = catalogue_rows(run);
  source.for_each([&](const record::Record& record) {
    const SeriesKey key{record.layer, record.tensor, record.gemm, record.statistic};
    SeriesSummary& summary = summaries[key];
    summary.key = key;
    summary.add(statistics[record.statistic], record,
                source.warm_up.covers(record.layer, record.iteration));
  });
  std::vector<SeriesSummary> sorted;
  for (auto& [key, summary] : summaries) {
    summary.sort_key.order_in_step = get_order_in_step(key, run);
    summary.sort_key.severity = summary.severity.value();
    summary.sort_key.tie_breaker = get_tie_breaker(statistics[key.statistic], summary);
    summary.sort_key.only_warm_up = summary.severity.only_warm_up();
    sorted.push_back(summary);
  }
  const auto place = [](const SeriesSummary& summary) {
    const SeriesKey& key = summary.key;
    return std::tuple(key.layer, key.tensor, key.gemm, key.statistic);
  };
  std::ranges::sort(sorted, [&](const SeriesSummary& a, const SeriesSummary& b) {
    if (worse(a.sort_key, b.sort_key)) return true;
    return !worse(b.sort_key, a.sort_key) && place(a) < place(b);
  });
  return sorted;
}

Table series_table(const Source& source) {
  const record::RunReader& run = source.run;
  Table table({"layer", "tensor", "gemm", "statistic", "min", "mean", "max", "last", "at",
               "not finite", "records", "warm-up"});
  for (const SeriesSummary& summary : worst_series_first(source)) {
    const Values& shown = summary.shown();
    const auto finite = [&](double value) { return shown.finite > 0 ? Cell(value) : Cell(); };
    table.add({name_or_empty(run, Dictionary::layer, summary.key.layer),
               name_or_empty(run, Dictionary::tensor, summary.key.tensor),
               name_or_empty(run, Dictionary::gemm, summary.key.gemm),
               name_or_empty(run, Dictionary::statistic, summary.key.statistic),
               finite(shown.lowest), finite(shown.sum / static_cast<double>(shown.finite)),
               finite(shown.highest), summary.last, summary.last_iteration, summary.nonfinite,
               summary.records, summary.severity.warm_up()});
  }
  table.may_lack({"records", "at", "last", "not finite", "min"});
  table.drop_where_empty("warm-up");
  return table;
}

void run_stats(const StatsOptions& options) {
  const record::RunReader run = open_run(options.run);
  if (run.record_count() == 0)
    raise<RecordError>("{}: this run does not contain records yet", options.run);
  auto query = resolve(options.selection, run);
  if (options.by == kRank) {
    const Table table = rank_table(run, query);
    if (table.size() == 0) raise<UsageError>("{}: no record fits these filters", options.run);
    print_table(table, options.table);
    const bool of_two = std::ranges::find(table.columns(), kDifference) != table.columns().end();
    if (of_two && options.table.format == Format::table) {
      fmt::print("two ranks cannot show an outlier: `{}` is the mean minus the other rank's mean\n",
                 kDifference);
    }
    return;
  }
  // Show all statistics if no FP8 statistic was recorded, for example with a plugin's statistics
  // only.
  if (!query.statistics && !has_tensor_columns(run)) query.statistics = all_statistics(run);
  const WarmUp warm_up(run);
  const bool shows_trouble = options.table.format == Format::table && output_is_terminal();
  FirstTroubleFinder finder(run, warm_up);
  const Source source{run, warm_up, query, shows_trouble ? &finder : nullptr};
  const Table table = query.statistics ? series_table(source) : tensor_table(source);
  if (table.size() == 0) raise<UsageError>("{}: no record fits these filters", options.run);
  if (shows_trouble) print_sentences(sentences(finder.result(query, run.scalars()), warm_up, run));
  print_table(table, options.table);
  if (options.table.format == Format::table && output_is_terminal()) print_pointer(options.run);
}

}  // namespace

void add_stats(CLI::App& app) {
  auto options = std::make_shared<StatsOptions>();
  CLI::App* command = app.add_subcommand(
      "stats",
      "Rank tensors by severity, or show chosen statistics.\n\n"
      "Tensors with NaN or Inf come first, the earliest first. Then come those that lose most when "
      "they are quantized: how often, times how much. Iterations in which delayed scaling warms up "
      "do not count.\n\n"
      "With --stat, prints the minimum, mean, maximum and last value of these statistics.");
  add_run(*command, options->run);
  add_selection(*command, options->selection);
  command->add_option("--by", options->by, "rank: one row per rank, outliers first")
      ->type_name("{rank}")
      ->check(CLI::IsMember({kRank}).description(""));
  add_table_options(*command, options->table);
  command->footer(
      "Examples:\n"
      "  telens stats logs --top 10\n"
      "  telens stats logs --layer 'layers\\.0\\.' --tensor gradient --stat underflows%\n"
      "  telens stats logs --by rank --stat cur_amax");
  command->callback([options] { run_stats(*options); });
}

}  // namespace telens::cli
