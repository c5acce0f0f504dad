// telens stats: which tensors look worst, or chosen statistics over the iterations.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cmath>
#include <memory>
#include <string_view>

#include "core/base/error.h"
#include "inspector_cli/first_trouble.h"
#include "inspector_cli/format_option.h"
#include "inspector_cli/selection.h"
#include "inspector_cli/series.h"
#include "inspector_cli/subcommands.h"
#include "inspector_cli/table.h"
#include "inspector_cli/tensor_summary.h"
#include "inspector_cli/terminal.h"
#include "inspector_cli/whole_number.h"
#include "inspector_cli/worst_value.h"

namespace telens::cli {
namespace {

using record::Dictionary;

struct StatsOptions {
  std::string run;
  Selection selection;
  Format format = Format::table;
  int top = 0;
};

template <typename T>
Cell cell(const std::optional<T>& value) {
  return value ? Cell(*value) : Cell();
}

Cell count_cell(const std::optional<double>& value) {
  return value ? Cell(static_cast<std::int64_t>(*value)) : Cell();
}

bool within(std::size_t rows, int top) { return top <= 0 || rows < static_cast<std::size_t>(top); }

Table tensor_table(const record::RunReader& run, const record::RecordQuery& query, int top) {
  TensorSummaries summaries(run);
  for_each_record(run, query, [&](const record::Record& record) { summaries.add(record); });
  const auto rows = summaries.worst_first();
  const bool what_if =
      std::ranges::any_of(rows, [](const auto& row) { return !row.recipe.empty(); });
  std::vector<std::string> columns{"layer", "tensor",     "gemm",        "nonfinite",
                                   "first", "overflows%", "underflows%", "mse/amax^2",
                                   "amax",  "iterations"};
  if (what_if) columns.insert(columns.begin() + 3, "recipe");
  Table table(columns);
  for (const TensorSummary& row : rows) {
    if (!within(table.size(), top)) break;
    std::vector<Cell> cells{name_or_empty(run, Dictionary::layer, row.layer),
                            name_or_empty(run, Dictionary::tensor, row.tensor),
                            name_or_empty(run, Dictionary::gemm, row.gemm),
                            count_cell(row.nonfinite),
                            cell(row.first_nonfinite),
                            cell(row.overflows),
                            cell(row.underflows),
                            cell(row.relative_mse),
                            cell(row.amax),
                            row.iterations};
    if (what_if) cells.insert(cells.begin() + 3, row.recipe);
    table.add(std::move(cells));
  }
  return table;
}

// One statistic of one tensor over the iterations.
struct Course {
  SeriesKey key;
  std::int64_t records = 0;
  std::int64_t nonfinite = 0;
  double lowest = INFINITY;
  double highest = -INFINITY;
  double sum = 0;
  double last = 0;
  std::int64_t last_iteration = 0;

  void add(const record::Record& record) {
    ++records;
    last = record.value;
    last_iteration = record.iteration;
    if (!std::isfinite(record.value)) {
      ++nonfinite;
      return;
    }
    lowest = std::min(lowest, record.value);
    highest = std::max(highest, record.value);
    sum += record.value;
  }
  std::int64_t finite() const { return records - nonfinite; }
};

Table course_table(const record::RunReader& run, const record::RecordQuery& query, int top) {
  std::unordered_map<SeriesKey, Course, SeriesHash> courses;
  for_each_record(run, query, [&](const record::Record& record) {
    const SeriesKey key{record.layer, record.tensor, record.gemm, record.statistic};
    Course& course = courses[key];
    course.key = key;
    course.add(record);
  });
  std::vector<Course> sorted;
  for (const auto& [key, course] : courses) sorted.push_back(course);
  const auto badness_of = [&](const Course& course) {
    return badness(name_or_empty(run, Dictionary::statistic, course.key.statistic), course.lowest,
                   course.highest);
  };
  const auto place = [](const Course& course) {
    const SeriesKey& key = course.key;
    return std::tuple(key.layer, key.tensor, key.gemm, key.statistic);
  };
  std::ranges::sort(sorted, [&](const Course& a, const Course& b) {
    if (a.nonfinite != b.nonfinite) return a.nonfinite > b.nonfinite;
    const double left = badness_of(a);
    const double right = badness_of(b);
    return left != right ? left > right : place(a) < place(b);
  });
  Table table({"layer", "tensor", "gemm", "statistic", "min", "mean", "max", "last", "at",
               "not finite", "records"});
  for (const Course& course : sorted) {
    if (!within(table.size(), top)) break;
    const auto finite = [&](double value) { return course.finite() > 0 ? Cell(value) : Cell(); };
    table.add({name_or_empty(run, Dictionary::layer, course.key.layer),
               name_or_empty(run, Dictionary::tensor, course.key.tensor),
               name_or_empty(run, Dictionary::gemm, course.key.gemm),
               name_or_empty(run, Dictionary::statistic, course.key.statistic),
               finite(course.lowest), finite(course.sum / static_cast<double>(course.finite())),
               finite(course.highest), course.last, course.last_iteration, course.nonfinite,
               course.records});
  }
  return table;
}

void run_stats(const StatsOptions& options) {
  const record::RunReader run = open_run(options.run);
  if (run.record_count() == 0) raise<RecordError>("{}: this run has no records (yet)", options.run);
  const auto query = resolve(options.selection, run);
  const Table table = query.statistics ? course_table(run, query, options.top)
                                       : tensor_table(run, query, options.top);
  if (table.size() == 0) raise<UsageError>("{}: no record fits these filters", options.run);
  if (options.format == Format::table && output_is_terminal()) print_first_trouble(run, query);
  fmt::print("{}", table.render(options.format));
}

}  // namespace

void add_stats(CLI::App& app) {
  auto options = std::make_shared<StatsOptions>();
  CLI::App* command = app.add_subcommand(
      "stats",
      "Which tensors look worst: by non-finite elements, overflows%, underflows%, mse/amax^2.\n"
      "With --stat: the course of these statistics.");
  command->add_option("RUN", options->run, "The run")->required();
  add_selection(*command, options->selection);
  add_format(*command, options->format);
  add_top(*command, options->top);
  command->callback([options] { run_stats(*options); });
}

}  // namespace telens::cli
