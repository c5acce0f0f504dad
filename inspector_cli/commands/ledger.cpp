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
#include "hooks/config/python_regex.h"
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
  TableOptions table;
};

constexpr std::string_view kViolation = "violation";

// The precision in which a GEMM ran from some iteration on.
struct GemmState {
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
Ledger read_ledger(const record::RunReader& run) {
  Ledger ledger;
  const auto& words = run.names(Dictionary::word);
  using Key = std::tuple<int, std::int32_t, std::int32_t, double>;
  std::optional<Key> last;
  for (const LedgerRow& row : run.rows<LedgerRow>()) {
    if (row.entry == record::kNoName || row.detail == record::kNoName) continue;
    const std::string& entry = words[row.entry];
    if (entry == kViolation) {
      ledger.violations.insert(words[row.detail]);
      continue;
    }
    const Key key{row.rank, row.layer, row.gemm, row.value};
    if (key != last || ledger.states.back().entries.contains(entry)) {
      ledger.states.push_back({row.layer, row.gemm, row.iteration, {}});
      last = key;
    }
    ledger.states.back().entries.emplace(entry, words[row.detail]);
  }
  return ledger;
}

// An operand of a GEMM, with what it ran as.
struct OperandRow {
  std::string layer, gemm, tensor, requested, ran, reason, kernel;
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

// Each (layer, GEMM, tensor, what it ran as) once, with the first iteration on any rank.
std::vector<OperandRow> get_rows(const Ledger& ledger, const record::RunReader& run,
                                 const std::string& pattern) {
  std::optional<config::PythonRegex> regex;  // none matches every name, that of bytes too
  if (!pattern.empty()) regex.emplace(pattern);
  std::vector<OperandRow> rows;
  for (const GemmState& state : ledger.states) {
    const std::string layer = name_or_empty(run, Dictionary::layer, state.layer);
    if (regex && !regex->search(layer)) continue;
    for (const TensorName tensor : kAllTensors) {
      const std::string name(telens::get_name(tensor));
      if (!state.entries.contains(name + " requested")) continue;
      OperandRow row{.layer = layer,
                     .gemm = name_or_empty(run, Dictionary::gemm, state.gemm),
                     .tensor = name,
                     .requested = state.detail(name + " requested"),
                     .ran = state.detail(name + " ran"),
                     .reason = state.detail(name + " cause"),
                     .kernel = get_kernel(state),
                     .first_iteration = state.iteration,
                     .fallback = state.entries.contains(name + " fallback"),
                     .place = rows.size()};
      if (row.fallback) row.reason = state.detail(name + " fallback");
      const auto same = std::ranges::find_if(rows, [&](const OperandRow& known) {
        const auto content = [](const OperandRow& r) {
          return std::tie(r.layer, r.gemm, r.tensor, r.requested, r.ran, r.reason, r.kernel);
        };
        return content(known) == content(row);
      });
      if (same == rows.end()) {
        rows.push_back(std::move(row));
      } else {
        same->first_iteration = std::min(same->first_iteration, row.first_iteration);
      }
    }
  }
  std::ranges::stable_sort(rows, [](const OperandRow& a, const OperandRow& b) {
    return a.fallback != b.fallback ? a.fallback : a.place < b.place;
  });
  return rows;
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
  const Ledger ledger = read_ledger(run);
  if (ledger.states.empty()) {
    raise<UsageError>(
        "{}: this run has no ledger; switch the feature PrecisionLedger on (namespace telens)",
        options.run);
  }
  const std::vector<OperandRow> rows = get_rows(ledger, run, options.layer);
  if (rows.empty() && options.layer.empty()) {
    raise<UsageError>("{}: the ledger of this run has no state of a GEMM that can be read",
                      options.run);
  }
  if (rows.empty()) {
    raise<UsageError>("{}: no layer of the ledger matches '{}'", options.run, options.layer);
  }
  Table table({"layer", "gemm", "tensor", "requested", "ran", "from", "fallback", "why", "kernel"});
  for (const OperandRow& row : rows) {
    table.add({row.layer, row.gemm, row.tensor, row.requested, row.ran, row.first_iteration,
               std::string(row.fallback ? "yes" : ""), row.reason, row.kernel});
  }
  table.may_lack({"from"});
  print_table(table, options.table);
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
  add_table_options(*command, options->table);
  command->callback([options] { run_ledger(*options); });
}

}  // namespace telens::cli
