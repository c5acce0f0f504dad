#include "inspector_cli/report/analysis_display.h"

#include <cstdint>
#include <optional>

#include "analysis/rank_spread.h"
#include "analysis/series.h"

namespace telens::cli {

Table block_table(const std::vector<analysis::WorstBlock>& blocks, const record::RunReader& run,
                  std::size_t most) {
  using record::Dictionary;
  Table table({"statistic", "layer", "tensor", "block row", "block column", "value", "iteration",
               "iterations", "rank"});
  std::int32_t statistic = record::kNoName;
  std::size_t shown = 0;
  for (const auto& [worst, iterations] : blocks) {
    if (worst.statistic != statistic) shown = 0;
    statistic = worst.statistic;
    if (most > 0 && shown++ >= most) continue;
    table.add({analysis::name_or_empty(run, Dictionary::statistic, worst.statistic),
               analysis::name_or_empty(run, Dictionary::layer, worst.layer),
               analysis::name_or_empty(run, Dictionary::tensor, worst.tensor),
               std::int64_t{worst.block_row}, std::int64_t{worst.block_column}, worst.value,
               worst.iteration, static_cast<std::int64_t>(iterations.size()),
               std::int64_t{worst.rank}});
  }
  return table;
}

Table rank_table(const record::RunReader& run, const record::RecordQuery& query) {
  using record::Dictionary;
  Table table({"rank", "layer", "tensor", "gemm", "statistic", "mean", "median of ranks",
               "deviations", "difference", "min", "max", "not finite", "records"});
  for (const analysis::RankStatistic& each : analysis::list_rank_statistics(run, query)) {
    const bool any = each.nonfinite < each.records;
    const auto finite = [&](double value) { return any ? Cell(value) : Cell(); };
    const auto known = [](const std::optional<double>& value) {
      return value ? Cell(*value) : Cell();
    };
    table.add(
        {std::int64_t{each.rank}, analysis::name_or_empty(run, Dictionary::layer, each.key.layer),
         analysis::name_or_empty(run, Dictionary::tensor, each.key.tensor),
         analysis::name_or_empty(run, Dictionary::gemm, each.key.gemm),
         analysis::name_or_empty(run, Dictionary::statistic, each.key.statistic), finite(each.mean),
         known(each.median_of_ranks), any ? known(each.deviation) : Cell(), known(each.difference),
         finite(each.lowest), finite(each.highest), each.nonfinite, each.records});
  }
  table.drop_where_empty("difference");
  table.may_lack({"records", "min", "max", "not finite"});
  return table;
}

std::optional<Color> get_color(analysis::Condition condition) {
  switch (condition) {
    case analysis::Condition::ended:
      return std::nullopt;
    case analysis::Condition::live:
      return Color::green;
    case analysis::Condition::warning:
      return Color::yellow;
    case analysis::Condition::failed:
      break;
  }
  return Color::red;
}

std::string state_text(const record::Segment& segment) {
  const analysis::RunState state = analysis::get_state(segment);
  const auto color = get_color(state.condition);
  return color ? colored(state.text, *color) : state.text;
}

}  // namespace telens::cli
