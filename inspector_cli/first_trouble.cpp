#include "inspector_cli/first_trouble.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <set>
#include <tuple>
#include <utility>

#include "core/base/names.h"
#include "features/statistics/statistic_name.h"
#include "inspector_cli/terminal.h"

namespace telens::cli {
namespace {

using record::Dictionary;

// Ids of a statistic of the running recipe.
std::vector<std::int32_t> ids_of(const record::RunReader& run, Statistic wanted) {
  std::vector<std::int32_t> ids;
  const auto& names = run.names(Dictionary::statistic);
  for (std::size_t i = 0; i < names.size(); ++i) {
    const auto parsed = parse_statistic_name(names[i]);
    if (parsed && parsed->statistic == wanted && !parsed->what_if) {
      ids.push_back(static_cast<std::int32_t>(i));
    }
  }
  return ids;
}

// When a tensor comes up within an iteration: the forward pass goes through the layers (their ids
// count from the first one), the backward pass returns through them.
std::tuple<int, std::int32_t, int> turn_of(const SeriesKey& key, const record::RunReader& run) {
  constexpr std::array kOrder{TensorName::weight,   TensorName::activation, TensorName::output,
                              TensorName::gradient, TensorName::dgrad,      TensorName::wgrad};
  const auto tensor = tensor_from_name(name_or_empty(run, Dictionary::tensor, key.tensor));
  if (!tensor) return {0, key.layer, 0};
  const auto order = static_cast<int>(std::ranges::find(kOrder, *tensor) - kOrder.begin());
  const bool backward = order >= 3;
  return {backward ? 1 : 0, backward ? -key.layer : key.layer, order};
}

// The earliest value above zero, and how many other tensors have one in that iteration, on however
// many ranks and for however many recipes.
std::optional<Trouble> earliest_above_zero(const record::RunReader& run, record::RecordQuery query,
                                           Statistic statistic, std::int64_t& others) {
  query.statistics = ids_of(run, statistic);
  if (query.statistics->empty()) return std::nullopt;
  std::optional<Trouble> first;
  std::set<std::pair<std::int32_t, std::int32_t>> tensors;  // in first's iteration
  for_each_record(run, query, [&](const record::Record& record) {
    if (!(record.value > 0) || (first && record.iteration > first->iteration)) return;
    const Trouble trouble{{record.layer, record.tensor, record.gemm, record.statistic},
                          record.iteration,
                          record.value};
    if (first && trouble.iteration < first->iteration) {
      first.reset();
      tensors.clear();
    }
    tensors.emplace(record.layer, record.tensor);
    if (!first || turn_of(trouble.where, run) < turn_of(first->where, run)) first = trouble;
  });
  others = tensors.empty() ? 0 : static_cast<std::int64_t>(tensors.size()) - 1;
  return first;
}

}  // namespace

FirstTrouble find_first_trouble(const record::RunReader& run, record::RecordQuery query) {
  FirstTrouble trouble;
  trouble.nonfinite = earliest_above_zero(run, query, Statistic::nonfinite, trouble.also);
  // Not overflows%: an amax lies beyond its own scale's range as soon as that was rounded down.
  std::int64_t other_overflows = 0;
  trouble.overflow = earliest_above_zero(run, query, Statistic::saturated, other_overflows);
  for (const record::Scalar& scalar : run.scalars()) {
    if (std::isfinite(scalar.value)) continue;
    if (query.rank && *query.rank != scalar.rank) continue;
    if (scalar.iteration < query.first_iteration || scalar.iteration > query.last_iteration)
      continue;
    if (trouble.scalar && trouble.scalar->iteration <= scalar.iteration) continue;
    trouble.scalar = Trouble{{}, scalar.iteration, scalar.value};
    trouble.scalar_name = run.names(Dictionary::word)[scalar.name];
  }
  return trouble;
}

std::string elements(double count) {
  return fmt::format("{:.0f} element{}", count, count == 1 ? "" : "s");
}

std::vector<std::string> sentences(const FirstTrouble& trouble, const record::RunReader& run) {
  std::vector<std::string> lines;
  if (const auto& bad = trouble.nonfinite) {
    const std::string others =
        trouble.also > 0
            ? fmt::format(", and in {} more tensor{}", trouble.also, trouble.also == 1 ? "" : "s")
            : "";
    lines.push_back(fmt::format("first non-finite: iteration {}, {}: {}{}", bad->iteration,
                                label_of(bad->where, run), elements(bad->value), others));
  }
  if (const auto& bad = trouble.scalar) {
    lines.push_back(
        fmt::format("{} not finite: from iteration {}", trouble.scalar_name, bad->iteration));
  }
  if (const auto& bad = trouble.overflow) {
    lines.push_back(fmt::format("first overflow: iteration {}, {}: {} clipped", bad->iteration,
                                label_of(bad->where, run), elements(bad->value)));
  }
  if (lines.empty()) lines.emplace_back("no non-finite value and no overflow recorded");
  return lines;
}

void print_first_trouble(const record::RunReader& run, const record::RecordQuery& query) {
  const FirstTrouble trouble = find_first_trouble(run, query);
  const bool grave = trouble.nonfinite || trouble.scalar;
  const Colour colour = grave ? Colour::red : trouble.overflow ? Colour::yellow : Colour::green;
  for (const std::string& sentence : sentences(trouble, run)) {
    fmt::print("{}\n", coloured(sentence, colour));
  }
}

}  // namespace telens::cli
