// Arguments and options that several subcommands share: RUN, selections, tables and numbers.
#pragma once

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <CLI/CLI.hpp>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "hooks/config/suggestions.h"
#include "inspector_cli/terminal/table.h"
#include "record/run_reader.h"

namespace telens::cli {

// Adds an option that accepts one word from a list, in any case. CLI11's transformer is not used:
// its error message prints the mapped values of an enum.
template <typename Value>
void add_choice(CLI::App& command, const char* name, Value& value,
                const std::map<std::string, Value>& choices, const std::string& doc) {
  std::vector<std::string> words;
  for (const auto& [word, ignored] : choices) words.push_back(word);
  const auto choose = [=, &value](const std::string& given) {
    for (const auto& [word, each] : choices) {
      if (CLI::detail::to_lower(word) != CLI::detail::to_lower(given)) continue;
      value = each;
      return;
    }
    throw CLI::ValidationError(
        name, fmt::format("expected one of {}, not '{}'{}", config::quoted_list(words), given,
                          config::suggestion(given, words)));
  };
  command.add_option_function<std::string>(name, choose, doc)
      ->type_name(fmt::format("{{{}}}", fmt::join(words, ",")));
}

// Validators for numbers. CLI11's range checks print limits of 300 digits.
CLI::Validator whole_number_from(std::int64_t lowest, std::int64_t highest = INT32_MAX);
CLI::Validator seconds_up_to(double longest);

// --format, --sort, --reverse and --top of subcommands that print a table.
struct TableOptions {
  Format format = Format::table;
  std::string sort;  // a column; "" keeps the subcommand's order
  bool reverse = false;
  int top = 0;  // rows; 0 means all
};
void add_table_options(CLI::App& command, TableOptions& options);
// Applies --sort, --reverse and --top.
Table arranged(Table table, const TableOptions& options);
// Prints the arranged table in the chosen format; on a terminal it fits the width.
void print_table(Table table, const TableOptions& options);

// The options that select records.
struct Selection {
  std::string layer;  // a regular expression, searched in the name
  std::vector<std::string> tensors;
  std::vector<std::string> gemms;
  std::vector<std::string> statistics;
  std::string iterations;  // "a:b", both inclusive, either may be missing; or one number
  std::optional<int> rank;
};

inline constexpr const char* kRunDoc =
    "A run's folder, one of its .h5 files, or a log_dir (its newest run)";

// Adds the required argument RUN.
void add_run(CLI::App& command, std::string& run);
void add_layer_option(CLI::App& command, std::string& layer);
void add_iterations_option(CLI::App& command, std::string& iterations);
void add_rank_option(CLI::App& command, std::optional<int>& rank);
// Adds --layer, --tensor, --iterations and --rank.
void add_tensor_selection(CLI::App& command, Selection& selection);
// Adds --gemm and --stat as well.
void add_selection(CLI::App& command, Selection& selection);

// Throws UsageError if the run does not have a file for the rank.
void check_rank(const std::optional<int>& rank, const record::RunReader& run);

// Returns the query for a selection. Throws UsageError with the nearest names of the run if the
// layer, tensor, GEMM, statistic or rank is not in the run.
record::RecordQuery resolve(const Selection& selection, const record::RunReader& run);

// Returns the query for the selection's histograms. Throws UsageError, with the path of the run, if
// the run does not contain histograms.
record::RecordQuery histogram_query(const Selection& selection, const record::RunReader& run,
                                    const std::string& path);

// The layers that --layers names.
struct LayerNames {
  std::vector<std::string> names;
  bool are_recorded = false;  // true if they come from a run, which knows no other layers
};

// Reads the layers of a run, or a text file with one name per line ("-" reads standard input).
// Skips blank lines and lines that begin with '#'. Throws UsageError if no name is left.
LayerNames read_layer_names(const std::string& path);

}  // namespace telens::cli
