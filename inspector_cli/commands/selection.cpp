#include "inspector_cli/commands/selection.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <charconv>

#include "core/base/error.h"
#include "core/base/names.h"
#include "core/base/printable.h"
#include "hooks/config/python_regex.h"
#include "hooks/config/suggestions.h"
#include "hooks/statistics/histogram_name.h"
#include "inspector_cli/commands/number_options.h"

namespace telens::cli {
namespace {

using Ids = record::RecordQuery::Ids;

std::vector<std::string> all_printable(std::vector<std::string> names) {
  std::ranges::transform(names, names.begin(), printable);
  return names;
}

Ids find_ids(const std::vector<std::string>& wanted, const std::vector<std::string>& names,
             std::string_view kind) {
  if (wanted.empty()) return std::nullopt;
  std::vector<std::int32_t> ids;
  for (const std::string& name : wanted) {
    const auto found = std::ranges::find(names, name);
    if (found == names.end()) {
      const std::vector<std::string> shown = all_printable(names);
      const auto near = config::suggestion(name, shown);
      raise<UsageError>("this run has no {} '{}'{}", kind, name,
                        near.empty() ? "; it has " + config::quoted_list(shown) : near);
    }
    ids.push_back(static_cast<std::int32_t>(found - names.begin()));
  }
  return ids;
}

// The program's own numbers are no statistics; every plot has the loss beside them.
void refuse_scalars(const std::vector<std::string>& wanted, const record::RunReader& run) {
  const std::vector<std::string>& statistics = run.names(record::Dictionary::statistic);
  const std::vector<std::string>& words = run.names(record::Dictionary::word);
  for (const std::string& name : wanted) {
    if (std::ranges::find(statistics, name) != statistics.end()) continue;
    const auto word = std::ranges::find(words, name) - words.begin();
    const auto is_scalar = [&](const record::Scalar& each) { return each.name == word; };
    if (std::ranges::none_of(run.scalars(), is_scalar)) continue;
    raise<UsageError>(
        "'{}' is a number of the program's own, not a statistic of a tensor; `telens report` shows "
        "it, and `telens plot` the loss beside any statistic",
        printable(name));
  }
}

Ids layers_matching(const std::string& pattern, const std::vector<std::string>& names) {
  if (pattern.empty()) return std::nullopt;
  const config::PythonRegex regex(pattern);
  std::vector<std::int32_t> ids;
  for (std::size_t i = 0; i < names.size(); ++i) {
    if (regex.search(names[i])) ids.push_back(static_cast<std::int32_t>(i));
  }
  if (ids.empty()) {
    const std::vector<std::string> shown = all_printable(names);
    const auto near = config::suggestion(pattern, shown);
    raise<UsageError>(
        "none of the run's {} layers matches '{}'{}", names.size(), pattern,
        near.empty() && !shown.empty() ? "; one is called '" + shown.front() + "'" : near);
  }
  return ids;
}

std::int64_t parse_iteration(std::string_view text, std::string_view whole, std::int64_t missing) {
  if (text.empty()) return missing;
  std::int64_t number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || end != text.data() + text.size()) {
    raise<UsageError>("--iterations '{}': expected a:b, a:, :b or one iteration", whole);
  }
  return number;
}

void set_iterations(std::string_view text, record::RecordQuery& query) {
  if (text.empty()) return;
  const auto colon = text.find(':');
  if (colon == std::string_view::npos) {
    query.first_iteration = query.last_iteration = parse_iteration(text, text, 0);
    return;
  }
  query.first_iteration = parse_iteration(text.substr(0, colon), text, INT64_MIN);
  query.last_iteration = parse_iteration(text.substr(colon + 1), text, INT64_MAX);
  if (query.first_iteration > query.last_iteration) {
    raise<UsageError>("--iterations '{}': its end lies before its beginning", text);
  }
}

// A GEMM's records are those of its copies of tensors, and those of its tensors themselves.
void select_gemms(const Selection& selection, const record::RunReader& run,
                  record::RecordQuery& query) {
  query.gemms = find_ids(selection.gemms, run.names(record::Dictionary::gemm), "GEMM");
  if (!query.gemms) return;
  query.gemms->push_back(record::kNoName);
  if (query.tensors) return;
  const auto& tensors = run.names(record::Dictionary::tensor);
  const auto meets_one = [&](const std::string& tensor) {
    const auto known = tensor_from_name(tensor);
    return !known || std::ranges::any_of(selection.gemms, [&](const std::string& gemm) {
      const auto known_gemm = gemm_from_name(gemm);
      return !known_gemm || belongs_to(*known, *known_gemm);
    });
  };
  query.tensors.emplace();
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    if (meets_one(tensors[i])) query.tensors->push_back(static_cast<std::int32_t>(i));
  }
}

}  // namespace

void check_rank(const std::optional<int>& rank, const record::RunReader& run) {
  if (!rank) return;
  const auto of_rank = [&](const record::Segment& segment) { return segment.rank == *rank; };
  if (std::ranges::none_of(run.segments(), of_rank)) {
    raise<UsageError>("this run has no file of rank {}", *rank);
  }
}

void add_run(CLI::App& command, std::string& run) {
  command.add_option("RUN", run, kRunDoc)->required();
}

void add_layer_option(CLI::App& command, std::string& layer) {
  command.add_option("--layer", layer, "Only layers whose name matches (Python syntax, searched)")
      ->type_name("REGEX");
}

void add_iterations_option(CLI::App& command, std::string& iterations) {
  command
      .add_option("--iterations", iterations, "Only iterations A to B, inclusive; also A:, :B or A")
      ->type_name("A:B");
}

void add_rank_option(CLI::App& command, std::optional<int>& rank) {
  command.add_option("--rank", rank, "Only this rank")->type_name("N")->check(whole_number_from(0));
}

void add_selection(CLI::App& command, Selection& selection) {
  add_tensor_selection(command, selection);
  command.add_option("--gemm", selection.gemms, "Only this GEMM; may be repeated")
      ->type_name("NAME");
  command.add_option("--stat", selection.statistics, "Only this statistic; may be repeated")
      ->type_name("NAME");
}

void add_tensor_selection(CLI::App& command, Selection& selection) {
  add_layer_option(command, selection.layer);
  command.add_option("--tensor", selection.tensors, "Only this tensor; may be repeated")
      ->type_name("NAME");
  add_iterations_option(command, selection.iterations);
  add_rank_option(command, selection.rank);
}

record::RecordQuery resolve(const Selection& selection, const record::RunReader& run) {
  using record::Dictionary;
  record::RecordQuery query;
  query.layers = layers_matching(selection.layer, run.names(Dictionary::layer));
  query.tensors = find_ids(selection.tensors, run.names(Dictionary::tensor), "tensor");
  select_gemms(selection, run, query);
  refuse_scalars(selection.statistics, run);
  query.statistics = find_ids(selection.statistics, run.names(Dictionary::statistic), "statistic");
  set_iterations(selection.iterations, query);
  check_rank(selection.rank, run);
  query.rank = selection.rank;
  return query;
}

record::RecordQuery histogram_query(const Selection& selection, const record::RunReader& run,
                                    const std::string& path) {
  const auto& statistics = run.names(record::Dictionary::statistic);
  std::vector<std::int32_t> ids;
  for (std::size_t i = 0; i < statistics.size(); ++i) {
    if (parse_histogram_name(statistics[i])) ids.push_back(static_cast<std::int32_t>(i));
  }
  if (ids.empty()) {
    raise<UsageError>(
        "{}: this run has no histograms; record them with the feature telens.ValueHistogram, as "
        "configs/value_histograms.yaml does (`telens features ValueHistogram` explains it)",
        path);
  }
  record::RecordQuery query = resolve(selection, run);
  query.statistics = std::move(ids);
  return query;
}

}  // namespace telens::cli
