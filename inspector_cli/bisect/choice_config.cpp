#include "inspector_cli/bisect/choice_config.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <nlohmann/json.hpp>
#include <vector>

#include "core/base/json.h"
#include "core/base/printable.h"

namespace telens::cli {
namespace {

// A string of JSON is one of YAML too, but for escapes of surrogates, which UTF-8 does without.
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

std::string get_sections(const Choice& choice) {
  std::map<std::set<Gemm>, std::vector<std::string>> alike;
  std::string text;
  for (const auto& [layer, gemms] : choice.high) {
    if (gemms.empty() || (choice.cast && choice.cast->layer == layer)) continue;
    alike[gemms].push_back(list_item(layer));
  }
  for (const auto& [gemms, layers] : alike) {
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
  return fmt::format(
      "{}{} in high precision but for its {}", choice.high.empty() ? "" : text + ", ",
      make_label(choice.cast->layer, choice.cast->gemm), get_name(choice.cast->tensor));
}

}  // namespace telens::cli
