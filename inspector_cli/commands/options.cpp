#include "inspector_cli/commands/options.h"

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <sstream>
#include <system_error>
#include <utility>

#include "core/base/error.h"
#include "core/base/io.h"
#include "core/base/names.h"
#include "core/base/text.h"
#include "hooks/config/python_regex.h"
#include "hooks/config/yaml_reader.h"
#include "hooks/statistics/histogram.h"
#include "inspector_cli/report/open_run.h"
#include "inspector_cli/terminal/terminal.h"

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

// Throws UsageError for the name of a scalar, such as the loss: scalars are not statistics.
void reject_scalars(const std::vector<std::string>& wanted, const record::RunReader& run) {
  const std::vector<std::string>& statistics = run.names(record::Dictionary::statistic);
  const std::vector<std::string>& words = run.names(record::Dictionary::word);
  for (const std::string& name : wanted) {
    if (std::ranges::find(statistics, name) != statistics.end()) continue;
    const auto word = std::ranges::find(words, name) - words.begin();
    const auto is_scalar = [&](const record::Scalar& each) { return each.name == word; };
    if (std::ranges::none_of(run.scalars(), is_scalar)) continue;
    raise<UsageError>(
        "'{}' is a scalar that the program logged, not a statistic of a tensor; `telens report` "
        "and `telens plot` show scalars",
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
    raise<UsageError>("--iterations '{}': the end is before the beginning", text);
  }
}

// Selects the records of the GEMM, and the records of its tensors that do not belong to a single
// GEMM.
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

constexpr std::string_view kBlanks = " \t\r";
constexpr unsigned char kDelete = 0x7F;

// Reads names from `beginning`, which was already read, and the rest of `file`.
std::vector<std::string> parse_layer_lines(std::string beginning, std::istream& file,
                                           const std::string& path) {
  const std::optional<std::string> rest = read_bounded(file, kMostTextBytes);
  if (!rest) {
    raise<UsageError>(
        "--layers '{}' is larger than {} MB; expected a file with one layer name per line", path,
        kMostTextBytes >> 20);
  }
  const std::string all = std::move(beginning) + *rest;
  if (const auto bad = config::first_bad_byte(all)) {
    const bool is_control = bad->byte < ' ' || bad->byte == kDelete;
    raise<UsageError>(
        "--layers '{}' {} (byte {:#04x} in line {}); expected a file with one layer name per line, "
        "or a run",
        path, is_control ? "contains a control character" : "is not UTF-8 text", bad->byte,
        bad->line);
  }
  std::istringstream text(all);
  std::vector<std::string> names;
  for (std::string line; std::getline(text, line);) {
    const auto begin = line.find_first_not_of(kBlanks);
    if (begin == std::string::npos || line[begin] == '#') continue;
    names.push_back(line.substr(begin, line.find_last_not_of(kBlanks) - begin + 1));
  }
  return names;
}

// HDF5 files begin with these bytes (its File Format Specification, section II.A).
constexpr std::string_view kSignature = "\x89HDF\r\n\x1a\n";

LayerNames read_layer_path(const std::string& path) {
  const auto from_run = [&] {
    return LayerNames{.names = open_run(path).names(record::Dictionary::layer),
                      .are_recorded = true};
  };
  std::error_code ignored;  // opening the file reports it
  const auto type = std::filesystem::status(path, ignored).type();
  if (type == std::filesystem::file_type::directory) return from_run();
  if (type == std::filesystem::file_type::character || type == std::filesystem::file_type::block) {
    raise<UsageError>(
        "--layers '{}' is a device; expected a file with one layer name per line, a run, or - for "
        "standard input",
        path);
  }
  errno = 0;
  std::ifstream file(path, std::ios::binary);
  if (!file) {
    raise<UsageError>(
        "--layers '{}' cannot be read: {}; expected a file with one layer name per line, a run, or "
        "- for standard input",
        path, std::generic_category().message(errno));
  }
  std::string beginning(kSignature.size(), '\0');
  file.read(beginning.data(), static_cast<std::streamsize>(beginning.size()));
  beginning.resize(static_cast<std::size_t>(file.gcount()));
  if (beginning == kSignature) return from_run();
  return {.names = parse_layer_lines(std::move(beginning), file, path)};
}

}  // namespace

CLI::Validator whole_number_from(std::int64_t lowest, std::int64_t highest) {
  const auto mistake_in = [lowest, highest](const std::string& text) -> std::string {
    std::int64_t number = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
    const bool whole = error == std::errc() && end == text.data() + text.size();
    if (whole && number >= lowest && number <= highest) return "";
    const bool too_large = error == std::errc::result_out_of_range || (whole && number > highest);
    const std::string at_most = too_large ? fmt::format(" to {}", highest) : "";
    return fmt::format("expected a whole number from {}{}, got '{}'", lowest, at_most, text);
  };
  return CLI::Validator(mistake_in, "");
}

CLI::Validator seconds_up_to(double longest) {
  const auto mistake_in = [longest](const std::string& text) -> std::string {
    double seconds = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), seconds);
    const bool is_number = error == std::errc() && end == text.data() + text.size();
    if (is_number && seconds > 0 && seconds <= longest) return "";
    return fmt::format("expected more than 0 seconds and at most {}, got '{}'", longest, text);
  };
  return CLI::Validator(mistake_in, "");
}

void add_top(CLI::App& command, int& top) {
  command.add_option("--top", top, "Only the first N rows")
      ->type_name("N")
      ->check(whole_number_from(1));
}

void add_table_options(CLI::App& command, TableOptions& options) {
  add_choice<Format>(command, "--format", options.format,
                     {{"table", Format::table}, {"csv", Format::csv}, {"json", Format::json}},
                     "table fits the terminal; csv and json have all columns");
  command.add_option("--sort", options.sort, "Sort by this column, numbers descending")
      ->type_name("COLUMN");
  command.add_flag("--reverse", options.reverse, "Reverse the order of rows");
  add_top(command, options.top);
}

Table arranged(Table table, const TableOptions& options) {
  if (!options.sort.empty()) table.sort_by(options.sort);
  if (options.reverse) table.reverse();
  if (options.top > 0) table.keep_first(static_cast<std::size_t>(options.top));
  return table;
}

void print_table(Table table, const TableOptions& options) {
  const auto width = stdout_is_terminal() ? static_cast<std::size_t>(terminal_width()) : 0;
  fmt::print("{}", arranged(std::move(table), options).render(options.format, width));
}

void check_rank(const std::optional<int>& rank, const record::RunReader& run) {
  if (!rank) return;
  const auto has_rank = [&](const record::Segment& segment) { return segment.rank == *rank; };
  if (std::ranges::none_of(run.segments(), has_rank)) {
    raise<UsageError>("this run does not contain a file of rank {}", *rank);
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
  reject_scalars(selection.statistics, run);
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
        "{}: this run contains no histograms; record them with the feature "
        "telens.ValueHistogram, as configs/value_histograms.yaml does (`telens features "
        "ValueHistogram` explains it)",
        path);
  }
  record::RecordQuery query = resolve(selection, run);
  query.statistics = std::move(ids);
  return query;
}

LayerNames read_layer_names(const std::string& path) {
  LayerNames layers = path == "-" ? LayerNames{.names = parse_layer_lines({}, std::cin, path)}
                                  : read_layer_path(path);
  if (layers.names.empty()) {
    raise<UsageError>("--layers '{}' contains no layer names; expected one per line, or a run",
                      path);
  }
  return layers;
}

}  // namespace telens::cli
