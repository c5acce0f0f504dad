// telens ledger: precision and kernel per GEMM, and the reason for every fallback.
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

#include "analysis/series.h"
#include "core/base/error.h"
#include "core/base/names.h"
#include "core/base/text.h"
#include "core/formats/format_id.h"
#include "hooks/config/python_regex.h"
#include "inspector_cli/commands/options.h"
#include "inspector_cli/commands/subcommands.h"
#include "inspector_cli/report/open_run.h"
#include "inspector_cli/terminal/table.h"

namespace telens::cli {
namespace {

using analysis::name_or_empty;

using record::Dictionary;
using record::LedgerRow;

struct LedgerOptions {
  std::string run;
  std::string layer;  // a regular expression, searched in the name
  std::optional<int> rank;
  std::string by;  // "rank", or "" to merge ranks with equal rows
  TableOptions table;
};

constexpr const char* kByRank = "rank";

constexpr std::string_view kViolation = "violation";

// The precision of a GEMM since `iteration`.
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

// Joins consecutive rows to states. Each state has each entry once.
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

// An operand of a GEMM and its precision. In text tables, all operands of a GEMM.
struct LedgerEntry {
  std::string layer, gemm, tensor, recipe, requested, ran, reason, kernel;
  std::set<int> ranks;
  std::int64_t first_iteration = 0;
  bool fallback = false;
  std::size_t place = 0;  // in the order of the first run
};

// Returns the kernel, the reason if it is not the fastest one, its padding and its overlap.
std::string get_kernel(const GemmState& state) {
  const std::string cause = state.detail("kernel cause");
  const std::string padding = state.detail("padding");
  const std::string overlap = state.detail("overlap");
  return state.detail("kernel") + (cause.empty() ? "" : fmt::format(" ({})", cause)) +
         (padding.empty() ? "" : fmt::format(", {}", padding)) +
         (overlap.empty() ? "" : fmt::format(", overlaps: {}", overlap));
}

LedgerEntry make_row(const GemmState& state, const std::string& tensor,
                     const record::RunReader& run) {
  LedgerEntry row{.layer = name_or_empty(run, Dictionary::layer, state.layer),
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

// Splits "E4M3 under tensor scaling" into format and scaling. The scaling of BF16 is empty.
std::pair<std::string, std::string> split_precision(const std::string& precision) {
  constexpr std::string_view kUnder = " under ";
  const auto at = precision.find(kUnder);
  if (at == std::string::npos) return {precision, ""};
  return {precision.substr(0, at), precision.substr(at + kUnder.size())};
}

using Field = std::string LedgerEntry::*;

bool is_common(const std::vector<LedgerEntry>& operands, Field field) {
  return std::ranges::all_of(
      operands, [&](const LedgerEntry& each) { return each.*field == operands.front().*field; });
}

// Returns "activation E4M3, weight E4M3, tensor scaling", with a common scaling only once.
std::string join_precisions(const std::vector<LedgerEntry>& operands, Field field) {
  const auto [format, scaling] = split_precision(operands.front().*field);
  if (scaling.empty() && is_common(operands, field)) return format;
  const bool has_one_scaling = std::ranges::all_of(operands, [&](const LedgerEntry& each) {
    return split_precision(each.*field).second == scaling;
  });
  std::string text;
  for (const LedgerEntry& each : operands) {
    text += fmt::format("{}{} {}", text.empty() ? "" : ", ", each.tensor,
                        has_one_scaling ? split_precision(each.*field).first : each.*field);
  }
  return has_one_scaling && !scaling.empty() ? fmt::format("{}, {}", text, scaling) : text;
}

// Returns the common reason if all operands have it, or one reason per operand.
std::string join_reasons(const std::vector<LedgerEntry>& operands) {
  if (is_common(operands, &LedgerEntry::reason)) return operands.front().reason;
  std::string text;
  for (const LedgerEntry& each : operands) {
    if (each.reason.empty()) continue;
    text += fmt::format("{}{}: {}", text.empty() ? "" : "; ", each.tensor, each.reason);
  }
  return text;
}

// Replaces the arithmetic of the CPU emulation by the emulated precision.
std::string describe_kernel(const std::string& kernel, const std::string& ran) {
  constexpr std::string_view kEmulated = " GEMM of decoded operands";
  const auto at = kernel.find(kEmulated);
  if (at == std::string::npos) return kernel;
  int bits = 8;  // of the narrowest element format in `ran`
  for (const FormatRow& format : kFormatRows) {
    if (ran.find(format.name) != std::string::npos) bits = std::min(bits, format.bits);
  }
  return fmt::format("FP{}, emulated on this CPU{}", bits, kernel.substr(at + kEmulated.size()));
}

std::string describe_reason(const std::string& reason) {
  constexpr std::string_view kRecipe = "the recipe wants it so";
  if (reason == "as it came") return "not quantized";  // an attention's operands
  if (!reason.starts_with(kRecipe)) return reason;
  return fmt::format("as the recipe specifies{}", reason.substr(kRecipe.size()));
}

// Joins the operands' rows to one row for the GEMM.
LedgerEntry join_operands(const std::vector<LedgerEntry>& operands) {
  LedgerEntry row = operands.front();
  row.tensor.clear();
  const bool ran_as_requested = std::ranges::all_of(
      operands, [](const LedgerEntry& each) { return each.requested == each.ran; });
  row.requested = ran_as_requested ? "" : join_precisions(operands, &LedgerEntry::requested);
  row.ran = join_precisions(operands, &LedgerEntry::ran);
  row.fallback = std::ranges::any_of(operands, &LedgerEntry::fallback);
  row.reason = describe_reason(join_reasons(operands));
  row.kernel = describe_kernel(row.kernel, row.ran);
  return row;
}

// Collects distinct rows, merged over ranks unless by_rank, with the first iteration on any rank.
class LedgerEntries {
 public:
  explicit LedgerEntries(bool by_rank) : by_rank_(by_rank) {}

  void add(LedgerEntry row) {
    row.place = rows_.size();
    const int rank = by_rank_ ? *row.ranks.begin() : 0;
    const auto [known, is_new] =
        places_.try_emplace(Key(rank, row.layer, row.gemm, row.tensor, row.recipe, row.requested,
                                row.ran, row.reason, row.kernel),
                            rows_.size());
    if (is_new) return rows_.push_back(std::move(row));
    LedgerEntry& same = rows_[known->second];
    same.ranks.merge(row.ranks);
    same.first_iteration = std::min(same.first_iteration, row.first_iteration);
  }

  // Returns fallbacks first, then rows in the order of the first run.
  std::vector<LedgerEntry> by_place() && {
    std::ranges::stable_sort(rows_, [](const LedgerEntry& a, const LedgerEntry& b) {
      return a.fallback != b.fallback ? a.fallback : a.place < b.place;
    });
    return std::move(rows_);
  }

  // Returns fallbacks first, then rows by layer, in the order of a layer's first run.
  std::vector<LedgerEntry> by_layer() && {
    std::map<std::string, std::size_t> layers;
    for (const LedgerEntry& row : rows_) layers.try_emplace(row.layer, row.place);
    const auto rank = [](const LedgerEntry& row) {
      const auto gemm = gemm_from_name(row.gemm);
      return gemm ? static_cast<int>(*gemm) : -1;
    };
    std::ranges::stable_sort(rows_, {}, [&](const LedgerEntry& row) {
      return std::tuple(!row.fallback, layers.at(row.layer), rank(row), row.place);
    });
    return std::move(rows_);
  }

 private:
  using Key = std::tuple<int, std::string, std::string, std::string, std::string, std::string,
                         std::string, std::string, std::string>;
  bool by_rank_;
  std::vector<LedgerEntry> rows_;
  std::map<Key, std::size_t> places_;
};

std::vector<LedgerEntry> get_rows(const Ledger& ledger, const record::RunReader& run,
                                  const LedgerOptions& options) {
  std::optional<config::PythonRegex> regex;  // nullopt matches every name, including invalid UTF-8
  if (!options.layer.empty()) regex.emplace(options.layer);
  const bool is_table = options.table.format == Format::table;
  LedgerEntries rows(options.by == kByRank);
  for (const GemmState& state : ledger.states) {
    if (regex && !regex->search(name_or_empty(run, Dictionary::layer, state.layer))) continue;
    std::vector<LedgerEntry> operands;
    for (const TensorName tensor : kAllTensors) {
      const std::string name(telens::get_name(tensor));
      if (state.entries.contains(name + " requested")) {
        operands.push_back(make_row(state, name, run));
      }
    }
    if (is_table && !operands.empty()) operands = {join_operands(operands)};
    for (LedgerEntry& each : operands) rows.add(std::move(each));
  }
  return is_table ? std::move(rows).by_layer() : std::move(rows).by_place();
}

// The ranks that have each operand.
using RanksOfOperands = std::map<std::tuple<std::string, std::string, std::string>, std::set<int>>;

RanksOfOperands list_ranks(const std::vector<LedgerEntry>& rows) {
  RanksOfOperands all;
  for (const LedgerEntry& row : rows) {
    all[{row.layer, row.gemm, row.tensor}].insert(row.ranks.begin(), row.ranks.end());
  }
  return all;
}

// Returns the ranks of a row, "0, 2", or "" if all ranks that have the operand are in the row.
std::string get_ranks(const LedgerEntry& row, const RanksOfOperands& all) {
  if (all.at({row.layer, row.gemm, row.tensor}) == row.ranks) return "";
  return format_ranks(std::vector<int>(row.ranks.begin(), row.ranks.end()));
}

// CSV and JSON always list the ranks of a row. Text tables list them only if ranks differ.
Cell make_rank_cell(const LedgerEntry& row, const RanksOfOperands& all,
                    const LedgerOptions& options) {
  if (options.table.format != Format::table)
    return std::vector<std::int64_t>(row.ranks.begin(), row.ranks.end());
  if (options.by == kByRank) return std::int64_t{*row.ranks.begin()};
  return get_ranks(row, all);
}

Table ledger_table(const std::vector<LedgerEntry>& rows, const LedgerOptions& options) {
  Table table({kByRank, "layer", "gemm", "tensor", "requested", "ran", "from", "fallback", "why",
               "kernel", "recipe"});
  const RanksOfOperands all = list_ranks(rows);
  for (const LedgerEntry& row : rows) {
    table.add({make_rank_cell(row, all, options), row.layer, row.gemm, row.tensor, row.requested,
               row.ran, row.first_iteration, std::string(row.fallback ? "yes" : ""), row.reason,
               row.kernel, row.recipe});
  }
  if (options.table.format == Format::table) {
    for (const char* column : {"tensor", "requested", "fallback"}) table.drop_where_empty(column);
    if (options.by != kByRank) table.drop_where_empty(kByRank);
  }
  table.drop_where_empty("recipe");
  table.may_lack({"from"});
  return table;
}

void print_violations(const std::set<std::string>& violations, Format format) {
  std::FILE* stream = format == Format::table ? stdout : stderr;
  fmt::print(stream, "{}{} not as the config expects:\n", format == Format::table ? "\n" : "",
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
        "{}: {}this run contains no ledger; record it with the feature telens.PrecisionLedger",
        options.run, of_rank);
  }
  const std::vector<LedgerEntry> rows = get_rows(ledger, run, options);
  if (rows.empty() && options.layer.empty()) {
    raise<UsageError>("{}: the ledger of this run does not contain a readable GEMM entry",
                      options.run);
  }
  if (rows.empty()) {
    raise<UsageError>("{}: no layer of the ledger matches '{}'", options.run, options.layer);
  }
  print_table(ledger_table(rows, options), options.table);
  if (!ledger.violations.empty()) {
    print_violations(ledger.violations, options.table.format);
    throw FindingsReported();
  }
}

}  // namespace

void add_ledger(CLI::App& app) {
  auto options = std::make_shared<LedgerOptions>();
  CLI::App* command = app.add_subcommand(
      "ledger",
      "Show the precision and kernel each GEMM used, and why.\n\nLists GEMMs that fell back to "
      "high precision first, then all GEMMs by layer, and the kernel of every attention. The "
      "run must have recorded telens.PrecisionLedger. Exit code 1 if an expectation of its "
      "config failed.");
  add_run(*command, options->run);
  add_layer_option(*command, options->layer);
  add_rank_option(*command, options->rank);
  command
      ->add_option("--by", options->by,
                   "rank: one row per rank. By default ranks are shown only if they differ")
      ->type_name("{rank}")
      ->check(CLI::IsMember({kByRank}).description(""));
  add_table_options(*command, options->table);
  command->footer(
      "Examples:\n"
      "  telens ledger logs\n"
      "  telens ledger logs --layer lm_head --format json");
  command->callback([options] { run_ledger(*options); });
}

}  // namespace telens::cli
