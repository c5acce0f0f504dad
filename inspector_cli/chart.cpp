#include "inspector_cli/chart.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <ranges>
#include <set>
#include <unordered_map>

#include "core/base/error.h"
#include "inspector_cli/scale.h"
#include "inspector_cli/series.h"

namespace telens::cli {
namespace {

using record::Dictionary;

// What a person looks at first, where none is asked for; the counts only if any is above zero.
constexpr std::array<std::string_view, 5> kUsualStatistics{"nonfinite", "overflows%", "underflows%",
                                                           "mse", "cur_amax"};
constexpr std::array<std::string_view, 2> kOnlyIfPositive{"nonfinite", "overflows%"};

using Rows = std::unordered_map<SeriesKey, std::vector<Bin>, SeriesHash>;

std::vector<std::int32_t> usual_statistics(const record::RunReader& run) {
  std::vector<std::int32_t> ids;
  const auto& names = run.names(Dictionary::statistic);
  for (const auto usual : kUsualStatistics) {
    const auto found = std::ranges::find(names, usual);
    if (found != names.end()) ids.push_back(static_cast<std::int32_t>(found - names.begin()));
  }
  if (ids.empty() && !names.empty()) ids.push_back(0);
  return ids;
}

// How bad a line is: not finite, then its largest magnitude.
std::pair<bool, double> badness(const std::vector<Bin>& bins) {
  std::pair<bool, double> worst{false, -1};
  for (const Bin& bin : bins) {
    if (!bin.seen()) continue;
    if (!bin.finite())
      worst.first = true;
    else
      worst.second = std::max(worst.second, std::abs(bin.value()));
  }
  return worst;
}

constexpr std::pair<bool, double> kNothing{false, 0.0};

Panel make_panel(const record::RunReader& run, std::int32_t statistic, const Rows& rows,
                 const ChartLimits& limits, std::size_t bins) {
  Panel panel{run.names(Dictionary::statistic)[statistic], {}, {}};
  std::vector<std::pair<SeriesKey, const std::vector<Bin>*>> series;
  std::map<std::int32_t, std::vector<Bin>> layers;
  for (const auto& [key, values] : rows) {
    if (key.statistic != statistic) continue;
    series.emplace_back(key, &values);
    auto& layer = layers.try_emplace(key.layer, bins).first->second;
    for (std::size_t b = 0; b < bins; ++b) {
      if (values[b].seen()) layer[b].add(values[b].value());
    }
  }
  for (auto& [layer, values] : layers) {
    panel.layers.push_back({name_or_empty(run, Dictionary::layer, layer), std::move(values)});
  }
  widen_cells(panel.layers);
  if (series.empty()) return panel;
  std::ranges::sort(series, [&](const auto& a, const auto& b) {
    const auto bad_a = badness(*a.second);
    const auto bad_b = badness(*b.second);
    if (bad_a != bad_b) return bad_a > bad_b;
    return label_of(a.first, run) < label_of(b.first, run);
  });
  series.resize(std::min(series.size(), limits.lines));
  // Beside a line that says something, a flat zero says nothing.
  const bool any = badness(*series.front().second) > kNothing;
  std::erase_if(series, [&](const auto& s) { return any && badness(*s.second) <= kNothing; });
  for (const auto& [key, values] : series) panel.worst.push_back({label_of(key, run), *values});
  return panel;
}

bool worth_showing(const Panel& panel) {
  if (std::ranges::find(kOnlyIfPositive, panel.statistic) == kOnlyIfPositive.end()) return true;
  return std::ranges::any_of(panel.worst, [](const Line& line) {
    return std::ranges::any_of(line.bins,
                               [](const Bin& bin) { return bin.seen() && !(bin.value() <= 0); });
  });
}

void set_iterations(Chart& chart, const record::RunReader& run, const record::RecordQuery& query,
                    std::size_t most_bins) {
  chart.first_iteration = INT64_MAX;
  chart.last_iteration = INT64_MIN;
  for (const auto& segment : run.segments()) {
    if (segment.records == 0 || (query.rank && *query.rank != segment.rank)) continue;
    chart.first_iteration = std::min(chart.first_iteration, segment.first_iteration);
    chart.last_iteration = std::max(chart.last_iteration, segment.last_iteration);
  }
  chart.first_iteration = std::max(chart.first_iteration, query.first_iteration);
  chart.last_iteration = std::min(chart.last_iteration, query.last_iteration);
  if (chart.first_iteration > chart.last_iteration) {
    raise<UsageError>("no record lies in these iterations");
  }
  const auto iterations =
      static_cast<std::size_t>(chart.last_iteration - chart.first_iteration) + 1;
  chart.bins = std::min(most_bins, iterations);
}

void add_scalars(Chart& chart, const record::RunReader& run, const record::RecordQuery& query) {
  std::map<std::int32_t, std::vector<Bin>> by_name;
  const int rank = query.rank.value_or(run.segments().front().rank);
  for (const auto& scalar : run.scalars()) {
    if (scalar.rank != rank || scalar.iteration < chart.first_iteration ||
        scalar.iteration > chart.last_iteration) {
      continue;
    }
    auto& bins = by_name.try_emplace(scalar.name, chart.bins).first->second;
    bins[chart.bin_of(scalar.iteration)].add(scalar.value);
  }
  for (auto& [name, bins] : by_name) {
    chart.scalars.push_back({run.names(Dictionary::word)[name], std::move(bins)});
  }
}

}  // namespace

void Bin::add(double value) {
  const bool worse =
      !seen_ || (finite() && (!std::isfinite(value) || std::abs(value) > std::abs(value_)));
  if (worse) value_ = value;
  seen_ = true;
}

bool Bin::finite() const { return std::isfinite(value_); }

std::int64_t Chart::iteration_of(std::size_t bin) const {
  const auto iterations = static_cast<std::size_t>(last_iteration - first_iteration) + 1;
  // The smallest iteration that bin_of sends to this bin.
  return first_iteration + static_cast<std::int64_t>((bin * iterations + bins - 1) / bins);
}

std::size_t Chart::bin_of(std::int64_t iteration) const {
  const auto iterations = static_cast<std::size_t>(last_iteration - first_iteration) + 1;
  return static_cast<std::size_t>(iteration - first_iteration) * bins / iterations;
}

std::vector<std::int64_t> Chart::iteration_ticks() const {
  constexpr int kParts = 8;
  const auto span = static_cast<double>(last_iteration - first_iteration);
  const auto step = static_cast<std::int64_t>(std::max(1.0, round_step(span / kParts)));
  std::vector<std::int64_t> ticks;
  std::int64_t at = first_iteration - first_iteration % step;
  if (at < first_iteration) at += step;
  for (; at <= last_iteration; at += step) ticks.push_back(at);
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

std::string shortened(const std::string& label, std::size_t longest) {
  constexpr std::string_view kGap = "..";
  if (label.size() <= longest) return label;
  const std::size_t kept = longest - kGap.size();
  const std::size_t front = kept * 2 / 5;
  return label.substr(0, front) + std::string(kGap) + label.substr(label.size() - (kept - front));
}

Chart make_chart(const record::RunReader& run, record::RecordQuery query,
                 const ChartLimits& limits) {
  if (run.record_count() == 0) {
    raise<RecordError>("{}: this run has no records (yet)", run.segments().front().path);
  }
  Chart chart;
  chart.run_id = run.segments().front().run_id;
  set_iterations(chart, run, query, limits.bins);
  add_scalars(chart, run, query);
  chart.trouble = find_first_trouble(run, query);
  chart.headlines = sentences(chart.trouble, run);

  const bool chosen = query.statistics.has_value();
  if (!chosen) query.statistics = usual_statistics(run);
  Rows rows;
  for_each_record(run, query, [&](const record::Record& record) {
    const bool inside =
        record.iteration >= chart.first_iteration && record.iteration <= chart.last_iteration;
    if (!inside) return;
    auto& bins =
        rows.try_emplace({record.layer, record.tensor, record.gemm, record.statistic}, chart.bins)
            .first->second;
    bins[chart.bin_of(record.iteration)].add(record.value);
  });
  if (rows.empty()) raise<UsageError>("no record fits these filters");
  for (const std::int32_t statistic : *query.statistics) {
    Panel panel = make_panel(run, statistic, rows, limits, chart.bins);
    if (panel.layers.empty() || (!chosen && !worth_showing(panel))) continue;
    if (!chosen && chart.panels.size() == limits.panels) break;
    chart.panels.push_back(std::move(panel));
  }
  return chart;
}

}  // namespace telens::cli
