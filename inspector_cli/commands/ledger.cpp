// telens ledger: what each GEMM really ran in, and why it was not what was asked for.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <tuple>
#include <vector>

#include "core/base/error.h"
#include "core/base/names.h"
#include "core/base/printable.h"
#include "core/base/rank_words.h"
#include "hooks/config/python_regex.h"
#include "inspector_cli/commands/number_options.h"
#include "inspector_cli/commands/selection.h"
#include "inspector_cli/commands/subcommands.h"
#include "inspector_cli/commands/table_options.h"
#include "inspector_cli/report/series.h"
#include "inspector_cli/terminal/table.h"

namespace telens::cli {
namespace {

using record::Dictionary;
using record::LedgerRow;

struct LedgerOptions {
  std::string run;
  std::string layer;  // a regular expression, searched
  std::optional<int> rank;
  std::string by;  // "rank", or "": ranks that say the same in one row
  TableOptions table;
};

constexpr const char* kByRank = "rank";

constexpr std::string_view kViolation = "violation";

// The precision in which a GEMM ran from some iteration on.
struct GemmState {
  int rank = 0;
  std::int32_t layer = record::kNoName;
  std::int32_t gemm = record::kNoName;
  std::int64_t iteration = 0;
  std::map<std::string, std::string> entries;

  std::string detail(const std::string& entry) const {
    const auto found = entries.find(entry);
    return found == entries.end() ? "" : found->second;
  }
};

struct Ledger {
  std::vector<GemmState> states;
  std::set<std::string> violations;
};

// The rows of one state come one after the other, each entry once.
Ledger read_ledger(const record::RunReader& run, const record::RecordQuery& query) {
  Ledger ledger;
  const auto& words = run.names(Dictionary::word);
  using Key = std::tuple<int, std::int32_t, std::int32_t, double>;
  std::optional<Key> last;
  for (const LedgerRow& row : run.rows<LedgerRow>(query)) {
    if (row.entry == record::kNoName || row.detail == record::kNoName) continue;
    const std::string& entry = words[row.entry];
    if (entry == kViolation) {
      ledger.violations.insert(words[row.detail]);
      continue;
    }
    const Key key{row.rank, row.layer, row.gemm, row.value};
    if (key != last || ledger.states.back().entries.contains(entry)) {
      ledger.states.push_back({row.rank, row.layer, row.gemm, row.iteration, {}});
      last = key;
    }
    ledger.states.back().entries.emplace(entry, words[row.detail]);
  }
  return ledger;
}

// An operand of a GEMM, with what it ran as.
struct OperandRow {
  std::string layer, gemm, tensor, recipe, requested, ran, reason, kernel;
  std::set<int> ranks;
  std::int64_t first_iteration = 0;
  bool fallback = false;
  std::size_t place = 0;  // in the order of first running
};

// With the reason where it is not the fastest one, with what was padded for it, and with what it
// overlaps.
std::string get_kernel(const GemmState& state) {
  const std::string cause = state.detail("kernel cause");
  const std::string padding = state.detail("padding");
  const std::string overlap = state.detail("overlap");
  return state.detail("kernel") + (cause.empty() ? "" : fmt::format(" ({})", cause)) +
         (padding.empty() ? "" : fmt::format(", {}", padding)) +
         (overlap.empty() ? "" : fmt::format(", overlaps: {}", overlap));
}

OperandRow make_row(const GemmState& state, const std::string& tensor,
                    const record::RunReader& run) {
  OperandRow row{.layer = name_or_empty(run, Dictionary::layer, state.layer),
                 .gemm = name_or_empty(run, Dictionary::gemm, state.gemm),
                 .tensor = tensor,
                 .recipe = state.detail("recipe"),
                 .requested = state.detail(tensor + " requested"),
                 .ran = state.detail(tensor + " ran"),
                 .reason = state.detail(tensor + " cause"),
                 .kernel = get_kernel(state),
                 .ranks = {state.rank},
                 .first_iteration = state.iteration,
                 .fallback = state.entries.contains(tensor + " fallback")};
  if (row.fallback) row.reason = state.detail(tensor + " fallback");
  return row;
}

// Collects each (layer, GEMM, tensor, what it ran as) once, or once a rank, with the first
// iteration on any of its ranks.
class OperandRows {
 public:
  explicit OperandRows(bool by_rank) : by_rank_(by_rank) {}

  void add(OperandRow row) {
    row.place = rows_.size();
    const int rank = by_rank_ ? *row.ranks.begin() : 0;
    const auto [known, is_new] =
        places_.try_emplace(Key(rank, row.layer, row.gemm, row.tensor, row.recipe, row.requested,
                                row.ran, row.reason, row.kernel),
                            rows_.size());
    if (is_new) return rows_.push_back(std::move(row));
    OperandRow& same = rows_[known->second];
    same.ranks.merge(row.ranks);
    same.first_iteration = std::min(same.first_iteration, row.first_iteration);
  }

  // Fallbacks first.
  std::vector<OperandRow> sorted() && {
    std::ranges::stable_sort(rows_, [](const OperandRow& a, const OperandRow& b) {
      return a.fallback != b.fallback ? a.fallback : a.place < b.place;
    });
    return std::move(rows_);
  }

 private:
  using Key = std::tuple<int, std::string, std::string, std::string, std::string, std::string,
                         std::string, std::string, std::string>;
  bool by_rank_;
  std::vector<OperandRow> rows_;
  std::map<Key, std::size_t> places_;
};

std::vector<OperandRow> get_rows(const Ledger& ledger, const record::RunReader& run,
                                 const LedgerOptions& options) {
  std::optional<config::PythonRegex> regex;  // none matches every name, that of bytes too
  if (!options.layer.empty()) regex.emplace(options.layer);
  OperandRows rows(options.by == kByRank);
  for (const GemmState& state : ledger.states) {
    if (regex && !regex->search(name_or_empty(run, Dictionary::layer, state.layer))) continue;
    for (const TensorName tensor : kAllTensors) {
      const std::string name(telens::get_name(tensor));
      if (state.entries.contains(name + " requested")) rows.add(make_row(state, name, run));
    }
  }
  return std::move(rows).sorted();
}

// All ranks that have an operand.
using RanksOfOperands = std::map<std::tuple<std::string, std::string, std::string>, std::set<int>>;

RanksOfOperands list_ranks(const std::vector<OperandRow>& rows) {
  RanksOfOperands all;
  for (const OperandRow& row : rows) {
    all[{row.layer, row.gemm, row.tensor}].insert(row.ranks.begin(), row.ranks.end());
  }
  return all;
}

// "0, 2": those of a row, where others that have the operand ran it otherwise.
std::string get_ranks(const OperandRow& row, const RanksOfOperands& all) {
  if (all.at({row.layer, row.gemm, row.tensor}) == row.ranks) return "";
  return format_ranks(std::vector<int>(row.ranks.begin(), row.ranks.end()));
}

// A program reads all ranks, in one form whatever the data; a table names them where they differ.
Cell make_rank_cell(const OperandRow& row, const RanksOfOperands& all,
                    const LedgerOptions& options) {
  if (options.table.format != Format::table)
    return std::vector<std::int64_t>(row.ranks.begin(), row.ranks.end());
  if (options.by == kByRank) return std::int64_t{*row.ranks.begin()};
  return get_ranks(row, all);
}

Table ledger_table(const std::vector<OperandRow>& rows, const LedgerOptions& options) {
  Table table({kByRank, "layer", "gemm", "tensor", "requested", "ran", "from", "fallback", "why",
               "kernel", "recipe"});
  const RanksOfOperands all = list_ranks(rows);
  for (const OperandRow& row : rows) {
    table.add({make_rank_cell(row, all, options), row.layer, row.gemm, row.tensor, row.requested,
               row.ran, row.first_iteration, std::string(row.fallback ? "yes" : ""), row.reason,
               row.kernel, row.recipe});
  }
  if (options.table.format == Format::table && options.by != kByRank) {
    table.drop_where_empty(kByRank);
  }
  table.drop_where_empty("recipe");
  table.may_lack({"from"});
  return table;
}

void print_violations(const std::set<std::string>& violations, Format format) {
  std::FILE* stream = format == Format::table ? stdout : stderr;
  fmt::print(stream, "{}{} not as expected:\n", format == Format::table ? "\n" : "",
             violations.size() == 1 ? std::string("1 GEMM was")
                                    : fmt::format("{} GEMMs were", violations.size()));
  for (const std::string& violation : violations) {
    fmt::print(stream, "  {}\n", printable(violation));
  }
}

void run_ledger(const LedgerOptions& options) {
  const record::RunReader run = open_run(options.run);
  check_rank(options.rank, run);
  record::RecordQuery query;
  query.rank = options.rank;
  const Ledger ledger = read_ledger(run, query);
  if (ledger.states.empty()) {
    const std::string of_rank = options.rank ? fmt::format("rank {} of ", *options.rank) : "";
    raise<UsageError>(
        "{}: {}this run has no ledger; switch the feature PrecisionLedger on (namespace telens)",
        options.run, of_rank);
  }
  const std::vector<OperandRow> rows = get_rows(ledger, run, options);
  if (rows.empty() && options.layer.empty()) {
    raise<UsageError>("{}: the ledger of this run has no state of a GEMM that can be read",
                      options.run);
  }
  if (rows.empty()) {
    raise<UsageError>("{}: no layer of the ledger matches '{}'", options.run, options.layer);
  }
  print_table(ledger_table(rows, options), options.table);
  if (!ledger.violations.empty()) {
    print_violations(ledger.violations, options.table.format);
    throw BadRun();
  }
}

}  // namespace

void add_ledger(CLI::App& app) {
  auto options = std::make_shared<LedgerOptions>();
  CLI::App* command =
      app.add_subcommand("ledger",
                         "What each GEMM really ran in, fallbacks first, and why, and which kernel "
                         "each attention ran\n"
                         "with; of runs with PrecisionLedger.\n"
                         "Exit code 1 if an expectation of its config did not hold.");
  command->add_option("RUN", options->run, "The run")->required();
  command->add_option("--layer", options->layer,
                      "Only layers in whose name this regular expression is found (Python syntax)");
  command->add_option("--rank", options->rank, "Only this rank")->check(whole_number_from(0));
  command
      ->add_option(
          "--by", options->by,
          "rank: a row for each rank, also where all ran alike. Without it ranks are named "
          "where they\ndiffer")
      ->check(CLI::IsMember({kByRank}));
  add_table_options(*command, options->table);
  command->callback([options] { run_ledger(*options); });
}

}  // namespace telens::cli
