#include "inspector_cli/report/chart.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <filesystem>
#include <functional>
#include <map>
#include <ranges>
#include <set>
#include <unordered_map>

#include "analysis/events.h"
#include "analysis/series.h"
#include "analysis/severity.h"
#include "core/base/error.h"
#include "core/base/text.h"
#include "inspector_cli/report/axis.h"
#include "inspector_cli/report/open_run.h"
#include "inspector_cli/terminal/text.h"

namespace telens::cli {
namespace {

using analysis::badness;
using analysis::catalogue_rows;
using analysis::is_bad;
using analysis::lost_share;
using analysis::name_or_empty;
using analysis::SeriesHash;
using analysis::SeriesKey;
using analysis::Severity;
using analysis::SortKey;
using analysis::WarmUp;

using record::Dictionary;

// A series to draw, and its rank among others.
struct Row {
  std::vector<Bin> bins;
  SortKey sort_key;
  Severity severity;
};
using Rows = std::unordered_map<SeriesKey, Row, SeriesHash>;

// Returns the statistics that have a panel in the catalogue, in the catalogue's order.
std::vector<std::int32_t> usual_statistics(const std::vector<StatisticId>& rows) {
  std::vector<std::int32_t> ids;
  for (std::size_t id = 0; id < rows.size(); ++id) {
    if (rows[id] != nullptr && rows[id]->panel.place > 0) {
      ids.push_back(static_cast<std::int32_t>(id));
    }
  }
  std::ranges::sort(ids, {}, [&](std::int32_t id) { return rows[id]->panel.place; });
  if (ids.empty() && !rows.empty()) ids.push_back(0);
  return ids;
}

// Returns the loss in units of lost_share, comparable between panels; infinite for non-finite
// values.
double get_loss(std::string_view statistic, const Row& row) {
  if (statistic == "nonfinite") return row.sort_key.first_bad ? HUGE_VAL : 0;
  if (row.severity.only_warm_up()) return 0;
  if (statistic == "overflows%") return lost_share(0, row.severity.value());
  return statistic == "underflows%" ? lost_share(row.severity.value(), 0) : 0;
}

bool shows_anything(const Row& row) {
  return row.sort_key.first_bad || row.severity.value() > 0 ||
         std::ranges::any_of(row.bins,
                             [](const Bin& bin) { return bin.drawn() && bin.value() != 0; });
}

// A damaged file may have any 64-bit iterations, so a distance needs 65 bits.
__extension__ using Wide = __int128;

Wide distance(std::int64_t from, std::int64_t to) { return Wide{to} - from; }

using RowOfSeries = std::pair<SeriesKey, const Row*>;

// Returns the series of a statistic, the worst first.
std::vector<RowOfSeries> find_series(const record::RunReader& run, std::int32_t statistic,
                                     const Rows& rows) {
  std::vector<RowOfSeries> series;
  for (const auto& [key, row] : rows) {
    if (key.statistic == statistic) series.emplace_back(key, &row);
  }
  std::ranges::sort(series, [&](const auto& a, const auto& b) {
    if (worse(a.second->sort_key, b.second->sort_key)) return true;
    if (worse(b.second->sort_key, a.second->sort_key)) return false;
    return make_label(a.first, run) < make_label(b.first, run);
  });
  return series;
}

// Returns up to `most` layers of the first series, in the order of the model.
std::set<std::int32_t> worst_layers(const std::vector<RowOfSeries>& series, std::size_t most) {
  std::set<std::int32_t> layers;
  for (const auto& [key, row] : series) {
    if (layers.size() == most) break;
    layers.insert(key.layer);
  }
  return layers;
}

void add_layers(Panel& panel, const record::RunReader& run, const std::vector<RowOfSeries>& series,
                const ChartLimits& limits, std::size_t bins) {
  const std::set<std::int32_t> shown = worst_layers(series, limits.layers);
  panel.layers_left_out = worst_layers(series, SIZE_MAX).size() - shown.size();
  std::map<std::int32_t, std::vector<RowOfSeries>> by_layer;
  std::size_t tensor_bins = 0;
  for (const auto& each : series) {
    if (!shown.contains(each.first.layer)) continue;
    by_layer[each.first.layer].push_back(each);
    tensor_bins += bins;
  }
  for (const auto& [layer, tensors] : by_layer) {
    Line line{printable(name_or_empty(run, Dictionary::layer, layer)), std::vector<Bin>(bins)};
    auto& lines = panel.tensors.emplace_back();
    for (const auto& [key, row] : tensors) {
      for (std::size_t b = 0; b < bins; ++b) line.bins[b].add(row->bins[b]);
      if (tensor_bins <= limits.tensor_bins) lines.push_back({make_label(key, run), row->bins});
    }
    panel.layer_ids.push_back(layer);
    panel.layers.push_back(std::move(line));
  }
  widen_cells(panel.layers);
}

Panel make_panel(const record::RunReader& run, std::int32_t statistic, const Rows& rows,
                 const ChartLimits& limits, std::size_t bins) {
  const std::string& name = run.names(Dictionary::statistic)[statistic];
  Panel panel{.id = statistic,
              .statistic = printable(name),
              .worst = {},
              .layers = {},
              .layer_ids = {},
              .tensors = {}};
  std::vector<RowOfSeries> series = find_series(run, statistic, rows);
  if (series.empty()) return panel;
  add_layers(panel, run, series, limits, bins);
  panel.loss = get_loss(name, *series.front().second);
  series.resize(std::min(series.size(), limits.lines));
  // Drop constant zeros if any line is not zero.
  const bool any = shows_anything(*series.front().second);
  std::erase_if(series, [&](const auto& each) { return any && !shows_anything(*each.second); });
  for (const auto& [key, row] : series) panel.worst.push_back({make_label(key, run), row->bins});
  return panel;
}

bool worth_showing(const Panel& panel) {
  const StatisticId statistic = find_statistic(panel.statistic);
  if (statistic == nullptr || !statistic->panel.only_above_zero) return true;
  return std::ranges::any_of(panel.worst, [](const Line& line) {
    return std::ranges::any_of(line.bins, [](const Bin& bin) {
      return bin.seen() && !bin.warm_up() && !(bin.value() <= 0);
    });
  });
}

void set_iterations(Chart& chart, const record::RunReader& run, const record::RecordQuery& query,
                    const std::vector<record::Scalar>& scalars, std::size_t most_bins) {
  chart.first_iteration = INT64_MAX;
  chart.last_iteration = INT64_MIN;
  for (const auto& segment : run.segments()) {
    if (segment.records == 0 || (query.rank && *query.rank != segment.rank)) continue;
    chart.first_iteration = std::min(chart.first_iteration, segment.first_iteration);
    chart.last_iteration = std::max(chart.last_iteration, segment.last_iteration);
  }
  // Losses are drawn even in iterations without records.
  for (const auto& scalar : scalars) {
    if (query.rank && *query.rank != scalar.rank) continue;
    chart.first_iteration = std::min(chart.first_iteration, scalar.iteration);
    chart.last_iteration = std::max(chart.last_iteration, scalar.iteration);
  }
  chart.first_iteration = std::max(chart.first_iteration, query.first_iteration);
  chart.last_iteration = std::min(chart.last_iteration, query.last_iteration);
  if (chart.first_iteration > chart.last_iteration) {
    raise<UsageError>("no record in these iterations");
  }
  chart.set_bins(most_bins);
}

void add_scalars(Chart& chart, const record::RunReader& run, const record::RecordQuery& query,
                 const std::vector<record::Scalar>& scalars) {
  std::map<std::int32_t, std::vector<Bin>> by_name;
  const int rank = query.rank.value_or(run.segments().front().rank);
  for (const auto& scalar : scalars) {
    if (scalar.rank != rank || scalar.iteration < chart.first_iteration ||
        scalar.iteration > chart.last_iteration) {
      continue;
    }
    auto& bins = by_name.try_emplace(scalar.name, chart.bins).first->second;
    bins[chart.get_bin(scalar.iteration)].add(scalar.value);
  }
  for (auto& [name, bins] : by_name) {
    chart.scalars.push_back({printable(run.names(Dictionary::word)[name]), std::move(bins)});
  }
}

}  // namespace

void Bin::add(double value, bool warm_up) {
  if (seen_ && warm_up && !warm_up_) return;
  const bool first = !seen_ || (warm_up_ && !warm_up);
  const bool worse =
      first || (finite() && (!std::isfinite(value) || std::abs(value) > std::abs(value_)));
  if (worse) value_ = value;
  warm_up_ = warm_up;
  seen_ = true;
}

void Bin::add(const Bin& other) {
  if (other.seen_) add(other.value_, other.warm_up_);
}

bool Bin::finite() const { return std::isfinite(value_); }

void Chart::set_bins(std::size_t most) {
  bins =
      static_cast<std::size_t>(std::min<Wide>(most, distance(first_iteration, last_iteration) + 1));
}

std::int64_t Chart::get_iteration(std::size_t bin) const {
  const Wide iterations = distance(first_iteration, last_iteration) + 1;
  // The smallest iteration that get_bin maps to this bin.
  return static_cast<std::int64_t>(first_iteration + (bin * iterations + bins - 1) / bins);
}

std::string Chart::title() const {
  // The iteration range is undefined without losses and records.
  if (scalars.empty() && panels.empty()) return log_dir;
  const Wide count = distance(first_iteration, last_iteration) + 1;
  return fmt::format("{}, {} iteration{}", log_dir, static_cast<std::uint64_t>(count),
                     count == 1 ? "" : "s");
}

std::size_t Chart::get_bin(std::int64_t iteration) const {
  return static_cast<std::size_t>(distance(first_iteration, iteration) * bins /
                                  (distance(first_iteration, last_iteration) + 1));
}

std::vector<std::int64_t> Chart::iteration_ticks() const {
  constexpr int kParts = 8;
  const auto span = static_cast<double>(distance(first_iteration, last_iteration));
  const auto step = static_cast<std::int64_t>(std::max(1.0, round_step(span / kParts)));
  std::vector<std::int64_t> ticks;
  Wide at = first_iteration - first_iteration % step;
  if (at < first_iteration) at += step;
  for (; at <= last_iteration; at += step) ticks.push_back(static_cast<std::int64_t>(at));
  return ticks;
}

void widen_cells(std::vector<Line>& rows) {
  std::set<std::size_t> recorded;
  for (const Line& row : rows) {
    for (std::size_t b = 0; b < row.bins.size(); ++b) {
      if (row.bins[b].seen()) recorded.insert(b);
    }
  }
  std::vector<std::size_t> distances;
  for (auto next = recorded.begin(); next != recorded.end();) {
    const std::size_t bin = *next++;
    if (next != recorded.end()) distances.push_back(*next - bin);
  }
  if (distances.empty()) return;
  const auto median = distances.begin() + static_cast<std::ptrdiff_t>(distances.size() / 2);
  std::ranges::nth_element(distances, median);
  const std::size_t reach = *median == 1 ? 1 : *median + 1;
  for (Line& row : rows) {
    for (const std::size_t bin : std::views::reverse(recorded)) {
      for (std::size_t b = bin + 1; b < row.bins.size() && b < bin + reach; ++b) {
        if (recorded.contains(b)) break;
        row.bins[b] = row.bins[bin];
      }
    }
  }
}

namespace {

// Reads the run once, for the rows and for the finder.
Rows get_rows(const record::RunReader& run, const WarmUp& warm_up, const record::RecordQuery& query,
              const Chart& chart, FirstTroubleFinder& finder) {
  Rows rows;
  const std::vector<StatisticId> statistics = catalogue_rows(run);
  for_each_record(run, query, finder, [&](const record::Record& record) {
    const bool inside =
        record.iteration >= chart.first_iteration && record.iteration <= chart.last_iteration;
    if (!inside) return;
    const SeriesKey key{record.layer, record.tensor, record.gemm, record.statistic};
    Row& row = rows.try_emplace(key).first->second;
    row.bins.resize(chart.bins);
    const StatisticId statistic = statistics[record.statistic];
    const bool bad = is_bad(statistic, record.value);
    const bool is_warm_up = !bad && warm_up.covers(record.layer, record.iteration);
    row.bins[chart.get_bin(record.iteration)].add(record.value, is_warm_up);
    row.severity.add(badness(statistic, record.value), is_warm_up);
    if (!bad) return;
    auto& first = row.sort_key.first_bad;
    first = std::min(first.value_or(record.iteration), record.iteration);
  });
  for (auto& [key, row] : rows) {
    row.sort_key.order_in_step = get_order_in_step(key, run);
    row.sort_key.severity = row.severity.value();
    row.sort_key.tie_breaker = row.severity.largest();
    row.sort_key.only_warm_up = row.severity.only_warm_up();
  }
  return rows;
}

void name_chart(Chart& chart, const record::RunReader& run) {
  namespace fs = std::filesystem;
  const auto& segment = run.segments().front();
  chart.run_id = printable(segment.run_id);
  const fs::path file = fs::absolute(segment.path).lexically_normal();
  const fs::path runs = file.parent_path().parent_path();
  const bool is_in_log_dir = runs.filename() == "telens" && runs.has_parent_path();
  chart.log_dir = printable((is_in_log_dir ? runs.parent_path() : file).filename().string());
}

// Sets overflows% to 0 if the counter `saturated` shows that nothing was clipped: elements beyond
// the largest value were only rounded to it.
void drop_rounding(Rows& rows, std::int32_t overflows, std::int32_t saturated) {
  for (auto& [key, row] : rows) {
    if (key.statistic != overflows) continue;
    const auto clips = rows.find({key.layer, key.tensor, key.gemm, saturated});
    if (clips == rows.end()) continue;
    const auto& counted = clips->second.bins;
    bool any = false;
    for (std::size_t b = 0; b < row.bins.size(); ++b) {
      const bool clipped = !counted[b].seen() || !(counted[b].value() == 0);
      if (row.bins[b].drawn() && !clipped) row.bins[b] = Bin(0);
      any = any || (row.bins[b].drawn() && row.bins[b].value() > 0);
    }
    if (any) continue;
    row.severity = {};
    row.sort_key.severity = row.sort_key.tie_breaker = 0;
  }
}

std::int32_t find_id(const record::RunReader& run, std::string_view statistic) {
  const auto& names = run.names(Dictionary::statistic);
  const auto found = std::ranges::find(names, statistic);
  return found == names.end() ? record::kNoName : static_cast<std::int32_t>(found - names.begin());
}

// Moves the common part of long layer names to the subtitle.
void strip_layers(Chart& chart) {
  constexpr std::size_t kLong = 24;
  std::vector<std::string> names;
  for (const Panel& panel : chart.panels) {
    for (const Line& layer : panel.layers) names.push_back(layer.label);
  }
  const CommonParts common = common_parts(names);
  const bool any_long =
      std::ranges::any_of(names, [](const std::string& name) { return get_columns(name) > kLong; });
  if (!common.any() || !any_long) return;
  chart.subtitle = common.sentence();
  for (Panel& panel : chart.panels) {
    for (Line& line : panel.worst) line.label = common.without(line.label);
    for (Line& layer : panel.layers) layer.label = common.without(layer.label);
    for (auto& tensors : panel.tensors) {
      for (Line& tensor : tensors) tensor.label = common.without(tensor.label);
    }
  }
}

}  // namespace

Chart make_scalar_chart(const record::RunReader& run, const ChartLimits& limits) {
  Chart chart;
  name_chart(chart, run);
  const std::vector<record::Scalar> scalars = run.scalars();
  const WarmUp warm_up(run);
  chart.trouble = FirstTroubleFinder(run, warm_up).result({}, scalars);
  chart.headlines = sentences(chart.trouble, warm_up, run);
  if (scalars.empty()) return chart;
  set_iterations(chart, run, {}, scalars, limits.bins);
  add_scalars(chart, run, {}, scalars);
  return chart;
}

Chart make_chart(const record::RunReader& run, record::RecordQuery query,
                 const ChartLimits& limits) {
  if (run.record_count() == 0) {
    raise<RecordError>("{}: this run does not contain records yet", run.segments().front().path);
  }
  Chart chart;
  name_chart(chart, run);
  const std::vector<record::Scalar> scalars = run.scalars();
  set_iterations(chart, run, query, scalars, limits.bins);
  add_scalars(chart, run, query, scalars);
  const WarmUp warm_up(run);
  FirstTroubleFinder finder(run, warm_up);
  const bool chosen = query.statistics.has_value();
  if (!chosen) query.statistics = usual_statistics(catalogue_rows(run));
  const std::vector<std::int32_t> shown = *query.statistics;
  const std::int32_t saturated = find_id(run, "saturated");
  const std::int32_t overflows = find_id(run, "overflows%");
  const bool may_round = !chosen && saturated != record::kNoName && overflows != record::kNoName;
  if (may_round) query.statistics->push_back(saturated);
  Rows rows = get_rows(run, warm_up, query, chart, finder);
  if (may_round) drop_rounding(rows, overflows, saturated);
  chart.trouble = finder.result(query, scalars);
  chart.headlines = sentences(chart.trouble, warm_up, run);
  if (rows.empty()) raise<UsageError>("no record fits these filters");
  for (const std::int32_t statistic : shown) {
    Panel panel = make_panel(run, statistic, rows, limits, chart.bins);
    if (panel.layers.empty() || (!chosen && !worth_showing(panel))) continue;
    chart.panels.push_back(std::move(panel));
  }
  strip_layers(chart);
  if (!chosen) {
    std::ranges::stable_sort(chart.panels, std::greater(), &Panel::loss);
    chart.panels.resize(std::min(chart.panels.size(), limits.panels));
  }
  return chart;
}

}  // namespace telens::cli
