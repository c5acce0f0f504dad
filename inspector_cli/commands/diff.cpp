// telens diff: finds where two runs first diverge; with --exact, the first tensor whose bits
// differ.
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <cmath>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "analysis/divergence.h"
#include "analysis/exact_difference.h"
#include "analysis/facts.h"
#include "analysis/findings.h"
#include "analysis/run_difference.h"
#include "analysis/series.h"
#include "core/base/error.h"
#include "core/base/json.h"
#include "core/base/text.h"
#include "inspector_cli/commands/options.h"
#include "inspector_cli/commands/subcommands.h"
#include "inspector_cli/report/open_run.h"
#include "inspector_cli/terminal/table.h"
#include "inspector_cli/terminal/terminal.h"
#include "inspector_cli/terminal/text.h"

namespace telens::cli {
namespace {

using analysis::Culprit;
using analysis::ExactDifference;
using analysis::ExactPlace;

constexpr int kExactSchema = 1;

std::string_view get_word(Culprit culprit) {
  switch (culprit) {
    case Culprit::initialization:
      return "initialization";
    case Culprit::optimizer:
      return "optimizer";
    case Culprit::data:
      return "data";
    case Culprit::forward:
      return "forward";
    case Culprit::loss:
      return "loss";
    case Culprit::backward:
      return "backward";
    case Culprit::between:
      return "between";
  }
  return "between";
}

std::string explain(const ExactDifference& difference) {
  const ExactPlace& first = *difference.first;
  const std::string inputs = fmt::format("{}", fmt::join(difference.equal_inputs, " and "));
  switch (difference.culprit) {
    case Culprit::initialization:
      return "The weight differs from the first compared iteration on: look at its initialization "
             "and at the checkpoint.";
    case Culprit::optimizer:
      return fmt::format(
          "All tensors compared before are equal, up to iteration {}: an optimizer step or other "
          "code changed the weight differently between iterations {} and {}.",
          *difference.iteration_before, *difference.iteration_before, first.iteration);
    case Culprit::data:
      return "The weights compared before are equal: the data differ, or the code that prepares "
             "them.";
    case Culprit::forward:
      return fmt::format("Inputs equal, output differs: {} computes another result from equal {}.",
                         first.layer, inputs);
    case Culprit::loss:
      return "All tensors compared in the forward pass are equal: the loss or its targets differ.";
    case Culprit::backward:
      return fmt::format(
          "Inputs equal, result differs: the backward pass of {} computes another {} "
          "from equal {}.",
          first.layer, telens::get_name(first.tensor), inputs);
    case Culprit::between:
      break;
  }
  return difference.before.empty()
             ? "No recorded tensor comes before it."
             : fmt::format(
                   "The recorded tensor before it, {}, is equal: operations between both differ.",
                   difference.before);
}

void print_text(const ExactDifference& difference) {
  if (!difference.first) {
    fmt::print("no tensor differs ({} digests compared)\n", difference.compared);
  } else {
    const ExactPlace& first = *difference.first;
    const std::size_t ranks = difference.ranks - 1;
    const std::string others =
        ranks > 0 ? fmt::format(" and {} other rank{}", ranks, ranks == 1 ? "" : "s") : "";
    const std::string head = fmt::format(
        "The first tensor whose bits differ is {} {}, in iteration {}, micro-batch {}, rank {}{}.",
        first.layer, telens::get_name(first.tensor), first.iteration, first.micro_batch, first.rank,
        others);
    fmt::print("{}\n{}\n", printable(head), printable(explain(difference)));
    fmt::print("{} of {} digests differ.\n", difference.different, difference.compared);
  }
  if (difference.only_in_one > 0) {
    fmt::print("{} digests are in one run only and were not compared.\n", difference.only_in_one);
  }
}

void print_json(const ExactDifference& difference, const std::string& a, const std::string& b) {
  Json object;
  object["schema_version"] = kExactSchema;
  object["a"] = json_text(a);
  object["b"] = json_text(b);
  object["compared"] = difference.compared;
  object["different"] = difference.different;
  object["only_in_one"] = difference.only_in_one;
  object["first"] = Json();
  if (difference.first) {
    const ExactPlace& first = *difference.first;
    Json place;
    place["iteration"] = first.iteration;
    place["micro_batch"] = first.micro_batch;
    place["rank"] = first.rank;
    place["ranks"] = difference.ranks;
    place["layer"] = json_text(first.layer);
    place["tensor"] = telens::get_name(first.tensor);
    place["culprit"] = get_word(difference.culprit);
    place["equal_inputs"] = Json::array();
    for (const std::string& input : difference.equal_inputs) {
      place["equal_inputs"].push_back(json_text(input));
    }
    place["before"] = difference.before.empty() ? Json() : json_text(difference.before);
    place["summary"] = json_text(explain(difference));
    object["first"] = std::move(place);
  }
  fmt::print("{}\n", json_line(object));
}

// Prints the difference of the runs at these paths, as text or as one JSON object. `map` replaces
// parts of A's layer names. Returns true if a tensor differs; throws UsageError if no digest is in
// both runs.
bool report_exact_difference(const std::string& a, const std::string& b,
                             const analysis::LayerMap& map, bool as_json) {
  const record::RunReader run_a = open_run(a);
  const record::RunReader run_b = open_run(b);
  const ExactDifference difference = analysis::find_exact_difference(
      analysis::read_digests(run_a), analysis::read_digests(run_b), map);
  if (difference.compared == 0) {
    raise<UsageError>(
        "{} and {} have no digest in common: record both with configs/exact_digests.yaml "
        "(TensorDigests), for the same layers, iterations and ranks; --map FROM=TO maps layer "
        "names",
        a, b);
  }
  if (as_json) {
    print_json(difference, a, b);
  } else {
    print_text(difference);
  }
  return difference.first.has_value();
}

using analysis::compare_runs;
using analysis::compared_statistics;
using analysis::Divergence;
using analysis::LayerMap;
using analysis::RunDifference;
using analysis::Unmatched;

constexpr int kDifferenceSchema = 1;
constexpr int kDefaultTop = 20;

struct DiffOptions {
  std::string a, b, spread;
  std::vector<std::string> map;  // "text in A's layer names=text in B's"
  Format format = Format::table;
  int top = kDefaultTop;
  bool exact = false;
};

LayerMap layer_map(const std::vector<std::string>& texts) {
  LayerMap map;
  for (const std::string& text : texts) {
    const auto at = text.find('=');
    if (at == 0 || at == std::string::npos) {
      raise<UsageError>(
          "--map {}: expected FROM=TO, a part of layer names in the first run and its replacement "
          "in the second run",
          text);
    }
    map.push_back({.from = text.substr(0, at), .to = text.substr(at + 1)});
  }
  return map;
}

diagnosis::Facts read_facts(const std::string& path) {
  const record::RunReader run = open_run(path);
  return {run, compared_statistics()};
}

// Both Divergence and Unmatched have a place, a layer and a quantity.
template <typename Compared>
std::string where(const Compared& each, const diagnosis::Facts& facts) {
  return each.layer.empty() ? printable(each.quantity)
                            : make_label(each.place, facts) + ", " + each.quantity;
}

std::string describe_end(const Divergence& each) {
  if (!each.last) return "";
  return *each.last == each.first ? "; for one iteration"
                                  : fmt::format("; until iteration {}", *each.last);
}

Json divergence_json(const Divergence& each) {
  Json object;
  object["layer"] = each.layer.empty() ? Json() : json_text(each.layer);
  object["tensor"] = each.place.tensor ? Json(telens::get_name(*each.place.tensor)) : Json();
  object["gemm"] = each.place.gemm ? Json(telens::get_name(*each.place.gemm)) : Json();
  object["rank"] = each.place.rank == diagnosis::kAllRanks ? Json() : Json(each.place.rank);
  object["quantity"] = json_text(each.quantity);
  object["series"] = each.series;
  object["first_iteration"] = each.first;
  object["last_iteration"] = each.last ? Json(*each.last) : Json();
  object["a"] = json_number(each.a);
  object["b"] = json_number(each.b);
  object["difference"] = json_number(each.difference);
  object["tolerance"] = json_number(each.tolerance);
  return object;
}

Json unmatched_json(const std::vector<Unmatched>& all) {
  Json list = Json::array();
  for (const Unmatched& each : all) {
    Json object;
    object["layer"] = each.layer.empty() ? Json() : json_text(each.layer);
    object["tensor"] = each.place.tensor ? Json(telens::get_name(*each.place.tensor)) : Json();
    object["gemm"] = each.place.gemm ? Json(telens::get_name(*each.place.gemm)) : Json();
    object["rank"] = each.place.rank == diagnosis::kAllRanks ? Json() : Json(each.place.rank);
    object["quantity"] = json_text(each.quantity);
    list.push_back(std::move(object));
  }
  return list;
}

Json names_json(const std::vector<std::string>& names) {
  Json list = Json::array();
  for (const std::string& name : names) list.push_back(json_text(name));
  return list;
}

void print_json(const RunDifference& difference, const DiffOptions& options) {
  Json object;
  object["schema_version"] = kDifferenceSchema;
  object["a"] = json_text(options.a);
  object["b"] = json_text(options.b);
  object["compared"] = difference.compared;
  object["other_seeds"] = difference.other_seeds;
  object["divergences"] = Json::array();
  for (const Divergence& each : difference.divergences) {
    object["divergences"].push_back(divergence_json(each));
  }
  object["unmatched_in_a"] = unmatched_json(difference.unmatched_in_a);
  object["unmatched_in_b"] = unmatched_json(difference.unmatched_in_b);
  object["only_in_a"] = names_json(difference.only_in_a);
  object["only_in_b"] = names_json(difference.only_in_b);
  fmt::print("{}\n", json_line(object));
}

void print_unmatched(std::string_view run, const std::vector<std::string>& layers) {
  constexpr std::size_t kShown = 3;
  if (layers.empty()) return;
  std::string names;
  for (std::size_t i = 0; i < std::min(kShown, layers.size()); ++i) {
    names += (i == 0 ? "" : ", ") + printable(layers[i]);
  }
  const std::string more =
      layers.size() > kShown ? fmt::format(" and {} more", layers.size() - kShown) : "";
  fmt::print("only in {}: {}{} (--map FROM=TO maps layer names)\n", run, names, more);
}

void print_unmatched_series(std::string_view run, const std::vector<Unmatched>& all,
                            const diagnosis::Facts& facts) {
  constexpr std::size_t kShown = 3;
  if (all.empty()) return;
  std::string names;
  for (std::size_t i = 0; i < std::min(kShown, all.size()); ++i) {
    names += (i == 0 ? "" : "; ") + where(all[i], facts);
  }
  const std::string more =
      all.size() > kShown ? fmt::format("; and {} more", all.size() - kShown) : "";
  fmt::print("{} series of {} have no counterpart and were not compared: {}{}\n", all.size(), run,
             names, more);
}

void warn_of_few_layers(const RunDifference& difference) {
  const std::size_t fewer =
      difference.common_layers + std::min(difference.only_in_a.size(), difference.only_in_b.size());
  if (2 * difference.common_layers >= fewer) return;
  note(fmt::format(
      "warning: only {} of {} layers correspond, so this compares little of the runs; --map "
      "FROM=TO maps the layer names of A to those of B",
      difference.common_layers, fewer));
}

// Maps names such as model.layers.0 and layers.0, and prints the map.
LayerMap map_by_prefix(const std::vector<std::string>& a, const std::vector<std::string>& b) {
  LayerMap map = analysis::find_layer_map(a, b);
  for (const auto& [from, to, at_start] : map) {
    note(from.empty()
             ? fmt::format("layer X of A is compared with layer {}X of B", printable(to))
             : fmt::format("layer {}X of A is compared with layer X of B", printable(from)));
  }
  return map;
}

void print_text(const RunDifference& difference, const diagnosis::Facts& facts,
                const diagnosis::Facts& facts_of_b, const DiffOptions& options) {
  const auto& all = difference.divergences;
  if (all.empty()) {
    fmt::print("no divergence beyond the tolerance ({} series compared)\n", difference.compared);
  } else {
    const Divergence& first = all.front();
    fmt::print(
        "The runs diverge in iteration {}: {} is {} in A and {} in B, a difference of {:.3g} % "
        "(expected: up to {:.3g} %){}.\n",
        first.first, where(first, facts), number_text(first.a), number_text(first.b),
        100 * first.difference, 100 * first.tolerance, describe_end(first));
    if (all.size() > 1) fmt::print("It spreads to {} more:\n\n", all.size() - 1);
    Table table({"iteration", "until", "layer", "tensor", "gemm", "quantity", "A", "B",
                 "difference %", "tolerance %"});
    for (const Divergence& each : all) {
      table.add({each.first, each.last ? Cell(*each.last) : Cell(), each.layer,
                 std::string(each.place.tensor ? telens::get_name(*each.place.tensor) : ""),
                 std::string(each.place.gemm ? telens::get_name(*each.place.gemm) : ""),
                 each.quantity, each.a, each.b, 100 * each.difference, 100 * each.tolerance});
    }
    table.drop_where_empty("gemm");
    table.drop_where_empty("until");
    if (options.top > 0) table.keep_first(static_cast<std::size_t>(options.top));
    const int width = stdout_is_terminal() ? terminal_width() : 0;
    if (all.size() > 1)
      fmt::print("{}", table.render(Format::table, static_cast<std::size_t>(width)));
  }
  if (difference.other_seeds) {
    fmt::print("The runs have different seeds: their initial weights or data differ.\n");
  }
  print_unmatched_series("A", difference.unmatched_in_a, facts);
  print_unmatched_series("B", difference.unmatched_in_b, facts_of_b);
  print_unmatched("A", difference.only_in_a);
  print_unmatched("B", difference.only_in_b);
}

void run_diff(const DiffOptions& options) {
  LayerMap map = layer_map(options.map);
  if (options.exact) {
    if (!options.spread.empty()) {
      raise<UsageError>(
          "--spread has no effect with --exact, which allows no chance; drop one of them");
    }
    if (options.top != kDefaultTop) {
      raise<UsageError>("--top has no effect with --exact, which reports one tensor; drop it");
    }
    if (map.empty()) {
      map = map_by_prefix(open_run(options.a).names(record::Dictionary::layer),
                          open_run(options.b).names(record::Dictionary::layer));
    }
    if (report_exact_difference(options.a, options.b, map, options.format == Format::json)) {
      throw FindingsReported();
    }
    return;
  }
  const diagnosis::Facts a = read_facts(options.a);
  const diagnosis::Facts b = read_facts(options.b);
  if (map.empty()) map = map_by_prefix(a.layer_names(), b.layer_names());
  std::optional<diagnosis::Facts> spread;
  if (!options.spread.empty()) spread.emplace(read_facts(options.spread));
  const RunDifference difference = compare_runs(a, b, spread ? &*spread : nullptr, map);
  if (difference.compared == 0) {
    raise<UsageError>(
        "{} and {} have nothing to compare: expected LogTensorStats (l2_norm, std or cur_amax) of "
        "the same layers and iterations; --map FROM=TO maps layer names",
        options.a, options.b);
  }
  warn_of_few_layers(difference);
  if (options.format == Format::json) {
    print_json(difference, options);
  } else {
    print_text(difference, a, b, options);
  }
  if (!difference.divergences.empty()) throw FindingsReported();
}

}  // namespace

void add_diff(CLI::App& app) {
  auto options = std::make_shared<DiffOptions>();
  CLI::App* command = app.add_subcommand(
      "diff",
      "Find where two runs first diverge beyond expected rounding.\n\n"
      "Compares scalars, tensor norms and quantization errors in two runs, and lists the layers to "
      "which the divergence spreads. Exit code 1 if the runs diverge.\n\n"
      "--exact compares the digests that TensorDigests recorded, and reports the first rank, "
      "micro-batch, layer and tensor whose bits differ, and what computed it.");
  command->add_option("A", options->a, "The trusted run")->required();
  command->add_option("B", options->b, "The run to compare")->required();
  command
      ->add_option("--spread", options->spread,
                   "A run like A with another seed; its distance from A counts as chance")
      ->type_name("RUN");
  command
      ->add_option("--map", options->map,
                   "FROM in A's layer names corresponds to TO in B's; may be repeated")
      ->type_name("FROM=TO");
  command->add_flag("--exact", options->exact,
                    "Find the first tensor whose bits differ; requires TensorDigests in both runs");
  add_choice<Format>(*command, "--format", options->format,
                     {{"table", Format::table}, {"json", Format::json}}, "table, or json");
  command->add_option("--top", options->top, "Only the first N rows, or all if 0 (default: 20)")
      ->type_name("N");
  command->footer(
      "Examples:\n"
      "  telens diff logs_bf16 logs_fp8\n"
      "  telens diff --exact logs_a logs_b\n"
      "  telens diff logs_bf16 logs_fp8 --spread logs_bf16_seed2 --map model.=");
  command->callback([options] { run_diff(*options); });
}

}  // namespace telens::cli
