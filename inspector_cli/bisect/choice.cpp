#include "inspector_cli/bisect/choice.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>

#include "analysis/facts.h"
#include "analysis/rules/precision_names.h"
#include "core/base/json.h"
#include "core/base/text.h"
#include "core/formats/scheme.h"
#include "features/fake_quant/fake_quant_options.h"
#include "features/precision_ledger/precision_ledger_options.h"

namespace telens::cli {
namespace {

constexpr std::array kFp8Formats{FormatId::e4m3, FormatId::e5m2};

// Returns the GEMM of a ledger state. Sets `is_low` if an operand ran in low precision.
LowGemm low_gemm(const diagnosis::GemmState& state, bool& is_low) {
  LowGemm found{.gemm = *state.place.gemm};
  for (const TensorName tensor : get_operands(found.gemm)) {
    const std::string ran = state.detail(std::string(get_name(tensor)) + " ran");
    if (ran.empty() || diagnosis::is_high_precision(ran)) continue;
    is_low = true;
    if (const auto format = get_quant_format(ran)) found.formats.emplace(tensor, *format);
  }
  return found;
}

// Returns a YAML string. JSON strings are valid YAML, except for surrogate escapes, which UTF-8
// output avoids.
std::string quoted(const std::string& name) {
  constexpr bool kAscii = false;
  return json_text(name).dump(-1, ' ', kAscii, Json::error_handler_t::replace);
}

std::vector<std::string_view> get_names(const std::set<Gemm>& gemms) {
  std::vector<std::string_view> names;
  for (const Gemm gemm : gemms) names.push_back(get_name(gemm));
  return names;
}

std::string section(const std::string& name, const std::vector<std::string>& layers,
                    const std::string& features) {
  return fmt::format(
      "{}:\n  enabled: True\n  layers:\n    exact_layer_names:\n{}  transformer_engine:\n{}", name,
      fmt::join(layers, ""), features);
}

std::string list_item(const std::string& layer) {
  return fmt::format("      - {}\n", quoted(layer));
}

std::string disabled(const std::set<Gemm>& gemms) {
  if (gemms.size() == kAllGemms.size()) return "    DisableFP8Layer: {enabled: True}\n";
  return fmt::format("    DisableFP8GEMM: {{enabled: True, gemms: [{}]}}\n",
                     fmt::join(get_names(gemms), ", "));
}

std::string fake_quant(const CastOperand& cast) {
  return fmt::format(
      "    FakeQuant: {{enabled: True, quant_format: {}, gemms: [{}], tensors: [{}]}}\n",
      cast.format, get_name(cast.gemm), get_name(cast.tensor));
}

}  // namespace

std::vector<TensorName> get_operands(Gemm gemm) {
  std::vector<TensorName> operands;
  for (const TensorName tensor : kAllTensors) {
    if (is_gemm_input(tensor) && belongs_to(tensor, gemm)) operands.push_back(tensor);
  }
  return operands;
}

std::optional<std::string> get_quant_format(std::string_view ran) {
  for (const ScalingScheme& scaling : kSchemes) {
    for (const FormatId fp8 : kFp8Formats) {
      const FormatId element = scaling.element.value_or(fp8);
      if (features::describe({get_name(element), scaling.mode}) != ran) continue;
      return std::string(features::FakeQuantOptions{element, scaling.recipe}.name());
    }
  }
  return std::nullopt;
}

std::vector<Candidate> candidates_in(const record::RunReader& run) {
  const diagnosis::Facts facts(run, {});
  std::map<std::int32_t, std::map<Gemm, LowGemm>> by_layer;
  for (const diagnosis::GemmState& state : facts.gemm_states()) {
    if (!state.place.gemm || state.place.layer == record::kNoName) continue;
    bool is_low = false;
    LowGemm gemm = low_gemm(state, is_low);
    if (is_low) by_layer[state.place.layer].try_emplace(gemm.gemm, std::move(gemm));
  }
  std::vector<Candidate> candidates;
  for (auto& [layer, gemms] : by_layer) {
    candidates.push_back({facts.layer_name(layer), {}});
    for (auto& [gemm, low] : gemms) candidates.back().gemms.push_back(std::move(low));
  }
  return candidates;
}

std::string get_sections(const Choice& choice) {
  std::map<std::set<Gemm>, std::vector<std::string>> same_gemms;
  std::string text;
  for (const auto& [layer, gemms] : choice.high) {
    if (gemms.empty() || (choice.cast && choice.cast->layer == layer)) continue;
    same_gemms[gemms].push_back(list_item(layer));
  }
  for (const auto& [gemms, layers] : same_gemms) {
    const std::string name =
        gemms.size() == kAllGemms.size()
            ? "high_precision"
            : fmt::format("high_precision_{}", fmt::join(get_names(gemms), "_"));
    text += section(name, layers, disabled(gemms));
  }
  if (!choice.cast) return text;
  const auto others = choice.high.find(choice.cast->layer);
  const bool has_others = others != choice.high.end() && !others->second.empty();
  return text + section("one_operand_is_cast", {list_item(choice.cast->layer)},
                        (has_others ? disabled(others->second) : "") + fake_quant(*choice.cast));
}

std::string make_label(const std::string& layer, Gemm gemm) {
  return printable(fmt::format("{} {}", layer, get_name(gemm)));
}

std::string short_text(const Choice& choice) {
  std::string text = "nothing in high precision";
  if (choice.high.size() == 1) {
    const auto& [layer, gemms] = *choice.high.begin();
    text = fmt::format("{} in high precision", printable(layer));
    if (gemms.size() < kAllGemms.size())
      text += fmt::format(": {}", fmt::join(get_names(gemms), ", "));
  } else if (!choice.high.empty()) {
    std::size_t gemms = 0;
    for (const auto& [layer, each] : choice.high) gemms += each.size();
    text = fmt::format("{} layers ({} GEMMs) in high precision", choice.high.size(), gemms);
  }
  if (!choice.cast) return text;
  return fmt::format("{}{} in high precision except its {}", choice.high.empty() ? "" : text + ", ",
                     make_label(choice.cast->layer, choice.cast->gemm),
                     get_name(choice.cast->tensor));
}

}  // namespace telens::cli
