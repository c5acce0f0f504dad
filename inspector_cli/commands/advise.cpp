// telens advise: reports which low-precision recipe fits a run, and which layers to keep in BF16.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "analysis/advice.h"
#include "analysis/facts.h"
#include "core/base/error.h"
#include "core/base/json.h"
#include "core/base/text.h"
#include "inspector_cli/commands/options.h"
#include "inspector_cli/commands/subcommands.h"
#include "inspector_cli/report/open_run.h"
#include "inspector_cli/terminal/table.h"
#include "inspector_cli/terminal/terminal.h"

namespace telens::cli {
namespace {

using analysis::Misfit;
using analysis::RecipeAdvice;

constexpr int kAdviceSchema = 1;

struct AdviseOptions {
  std::string run;
  Format format = Format::table;
};

std::string what_misfits(const Misfit& misfit, const analysis::Facts& facts) {
  const std::string& layer = facts.layer_name(misfit.layer);
  if (misfit.tensor) {
    return fmt::format("{:.2g} % of the {} of {} becomes zero", misfit.value,
                       telens::get_name(*misfit.tensor), layer);
  }
  return fmt::format("{} of {} has an error of {:.2g} % (limit: {:.2g} %)",
                     telens::get_name(*misfit.gemm), layer, 100 * misfit.value, 100 * misfit.limit);
}

std::string joined_titles(const std::vector<const RecipeAdvice*>& advices) {
  std::string text;
  for (std::size_t i = 0; i < advices.size(); ++i) {
    if (i > 0) text += i + 1 == advices.size() ? " and " : ", ";
    text += advices[i]->recipe->title;
  }
  return text;
}

// "current scaling and MXFP8 fit all 13 layers; NVFP4: 37 % of the gradient of lm_head becomes zero
// (5 layers do not fit)."
std::string verdict(const std::vector<RecipeAdvice>& advices, const analysis::Facts& facts) {
  std::vector<const RecipeAdvice*> fitting;
  std::vector<std::string> parts;
  for (const RecipeAdvice& advice : advices) {
    if (advice.fits()) fitting.push_back(&advice);
  }
  const auto is_measured_alike = [&](const RecipeAdvice* each) {
    return each->layers == fitting.front()->layers;
  };
  if (!fitting.empty() && std::ranges::all_of(fitting, is_measured_alike)) {
    parts.push_back(fmt::format("{} {} all {} layers", joined_titles(fitting),
                                fitting.size() == 1 ? "fits" : "fit", fitting.front()->layers));
  } else {
    for (const RecipeAdvice* each : fitting) {
      parts.push_back(fmt::format("{} fits the {} layers in which it was measured",
                                  each->recipe->title, each->layers));
    }
  }
  for (const RecipeAdvice& advice : advices) {
    if (advice.fits()) continue;
    parts.push_back(fmt::format("{}: {} ({} of {} layers {} not fit)", advice.recipe->title,
                                what_misfits(advice.misfits.front(), facts), advice.misfits.size(),
                                advice.layers, advice.misfits.size() == 1 ? "does" : "do"));
  }
  std::string text = fmt::format("{}", fmt::join(parts, "; "));
  text.front() = static_cast<char>(std::toupper(static_cast<unsigned char>(text.front())));
  return text + ".";
}

Table recipe_table(const std::vector<RecipeAdvice>& advices, const analysis::Facts& facts) {
  Table table({"recipe", "fits", "worst layer", "tensor", "underflows %", "mean underflows %",
               "largest GEMM error %", "in layer"});
  for (const RecipeAdvice& advice : advices) {
    const bool has_error = advice.largest_error > 0;
    table.add({std::string(advice.recipe->title),
               fmt::format("{} of {}", advice.layers - advice.misfits.size(), advice.layers),
               facts.layer_name(advice.worst.layer),
               std::string(telens::get_name(advice.worst.tensor)), advice.worst.underflows,
               advice.mean_underflows, has_error ? Cell(100 * advice.largest_error) : Cell(),
               has_error ? Cell(facts.layer_name(advice.layer_of_error)) : Cell()});
  }
  return table;
}

std::vector<std::string> kept_layers(const RecipeAdvice& advice, const analysis::Facts& facts) {
  std::vector<std::string> names;
  for (const Misfit& misfit : advice.misfits) names.push_back(facts.layer_name(misfit.layer));
  return names;
}

// Names in double quotes, escaped so that YAML and Python read the same text: users paste them.
std::string quoted(const std::vector<std::string>& names) {
  std::string list;
  for (const std::string& name : names) {
    list += (list.empty() ? "" : ", ") +
            Json(name).dump(-1, ' ', /*ensure_ascii=*/false, Json::error_handler_t::replace);
  }
  return list;
}

std::string yaml_section(const std::vector<std::string>& names) {
  return fmt::format(
      "keep_in_bf16:\n"
      "  enabled: True\n"
      "  layers: {{exact_layer_names: [{}]}}\n"
      "  transformer_engine: {{DisableFP8Layer: {{enabled: True}}}}\n",
      quoted(names));
}

std::string torchao_filter(const RecipeAdvice& advice, const std::vector<std::string>& names) {
  const std::string filter =
      names.empty() ? ""
                    : fmt::format(", module_filter_fn=lambda module, name: name not in {{{}}}",
                                  quoted(names));
  if (advice.recipe->torchao == "tensorwise") {
    return fmt::format(
        "from torchao.float8 import convert_to_float8_training\n"
        "convert_to_float8_training(model{})\n",
        filter);
  }
  return "";
}

std::string engine_recipe(const RecipeAdvice& advice) {
  const std::string name(advice.recipe->transformer_engine);
  return fmt::format(
      "from transformer_engine.common.recipe import {}\n"
      "with te.autocast(recipe={}): ...\n",
      name.substr(0, name.find('(')), name);
}

void print_text(const std::vector<RecipeAdvice>& advices, const analysis::Facts& facts) {
  const RecipeAdvice& best = advices.front();
  const std::vector<std::string> names = kept_layers(best, facts);
  fmt::print("{}\n\n", printable(verdict(advices, facts)));
  Table table = recipe_table(advices, facts);
  table.may_lack({"mean underflows %", "in layer"});
  const int width = stdout_is_terminal() ? terminal_width() : 0;
  fmt::print("{}\n", table.render(Format::table, static_cast<std::size_t>(width)));
  if (names.empty()) {
    fmt::print("Keep in BF16: no layer stands out under {}.\n", best.recipe->title);
  } else {
    fmt::print("Keep in BF16 under {}: {} of {} layers.\n\n", best.recipe->title, names.size(),
               best.layers);
    for (const Misfit& misfit : best.misfits) {
      fmt::print("  {}\n", printable(what_misfits(misfit, facts)));
    }
    fmt::print("\nAs a section of a configuration:\n\n{}", printable_lines(yaml_section(names)));
  }
  fmt::print("\nTransformer Engine:\n\n{}", engine_recipe(best));
  const std::string filter = torchao_filter(best, names);
  if (!filter.empty()) fmt::print("\ntorchao:\n\n{}", printable_lines(filter));
}

void print_json(const std::vector<RecipeAdvice>& advices, const analysis::Facts& facts,
                const std::string& run) {
  const RecipeAdvice& best = advices.front();
  Json object;
  object["schema_version"] = kAdviceSchema;
  object["run"] = json_text(run);
  object["verdict"] = json_text(verdict(advices, facts));
  object["recipes"] = Json::array();
  for (const RecipeAdvice& advice : advices) {
    Json entry;
    entry["recipe"] = advice.recipe->title;
    entry["layers"] = advice.layers;
    entry["fits"] = advice.fits();
    entry["worst_layer"] = json_text(facts.layer_name(advice.worst.layer));
    entry["worst_tensor"] = telens::get_name(advice.worst.tensor);
    entry["underflows_percent"] = json_number(advice.worst.underflows);
    entry["mean_underflows_percent"] = json_number(advice.mean_underflows);
    entry["largest_gemm_error"] =
        advice.largest_error > 0 ? json_number(advice.largest_error) : Json();
    entry["keep_in_bf16"] = Json::array();
    for (const Misfit& misfit : advice.misfits) {
      Json kept;
      kept["layer"] = json_text(facts.layer_name(misfit.layer));
      kept["tensor"] = misfit.tensor ? Json(telens::get_name(*misfit.tensor)) : Json();
      kept["gemm"] = misfit.gemm ? Json(telens::get_name(*misfit.gemm)) : Json();
      kept["value"] = json_number(misfit.value);
      kept["limit"] = json_number(misfit.limit);
      entry["keep_in_bf16"].push_back(std::move(kept));
    }
    object["recipes"].push_back(std::move(entry));
  }
  const auto names = kept_layers(best, facts);
  object["recommended"] = best.recipe->title;
  object["yaml"] = names.empty() ? Json() : json_text(yaml_section(names));
  object["transformer_engine"] = json_text(engine_recipe(best));
  const std::string filter = torchao_filter(best, names);
  object["torchao"] = filter.empty() ? Json() : json_text(filter);
  fmt::print("{}\n", json_line(object));
}

void run_advise(const AdviseOptions& options) {
  const record::RunReader run = open_run(options.run);
  const analysis::Facts facts(run, analysis::advised_statistics());
  const std::vector<RecipeAdvice> advices = analysis::advise(facts);
  if (advices.empty()) {
    raise<UsageError>(
        "{}: no loss of a recipe was recorded; expected a statistic such as mxfp8_underflows% of "
        "the activations, after the warm-up. Record with telens.watch, or with "
        "configs/compare_recipes.yaml for all recipes",
        options.run);
  }
  if (options.format == Format::json) {
    print_json(advices, facts, options.run);
  } else {
    print_text(advices, facts);
  }
}

}  // namespace

void add_advise(CLI::App& app) {
  auto options = std::make_shared<AdviseOptions>();
  CLI::App* command = app.add_subcommand(
      "advise",
      "Recommend an FP8 or FP4 recipe and layers to keep in BF16.\n\n"
      "Uses the losses of recipes on the tensors of any run, also of one in BF16. A layer does not "
      "fit "
      "if a tenth of a tensor becomes zero, or if the error of a GEMM exceeds three times what the "
      "rounding of its operands explains, or an SQNR of 10 dB. Values are means over the recorded "
      "iterations.\n\n"
      "telens.watch measures current scaling and MXFP8; configs/compare_recipes.yaml measures "
      "all.");
  add_run(*command, options->run);
  add_choice<Format>(*command, "--format", options->format,
                     {{"table", Format::table}, {"json", Format::json}}, "table, or json");
  command->footer("Example:\n  telens advise logs");
  command->callback([options] { run_advise(*options); });
}

}  // namespace telens::cli
