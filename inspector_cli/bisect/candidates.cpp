#include "inspector_cli/bisect/candidates.h"

#include <algorithm>
#include <array>
#include <set>

#include "analysis/facts.h"
#include "analysis/rules/precision_names.h"
#include "core/formats/scheme.h"
#include "features/fake_quant/fake_quant_options.h"
#include "features/precision_ledger/precision_ledger_options.h"

namespace telens::cli {
namespace {

constexpr std::array kElements{FormatId::e4m3, FormatId::e5m2, FormatId::e2m1};

// The operands of a state that ran in low precision.
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

}  // namespace

std::vector<TensorName> get_operands(Gemm gemm) {
  std::vector<TensorName> operands;
  for (const TensorName tensor : kAllTensors) {
    if (is_gemm_input(tensor) && belongs_to(tensor, gemm)) operands.push_back(tensor);
  }
  return operands;
}

std::optional<std::string> get_quant_format(std::string_view ran) {
  for (const ScalingMode mode : kAllScalingModes) {
    for (const FormatId element : kElements) {
      if ((element == FormatId::e2m1) != is_packed_fp4(mode)) continue;
      if (features::describe({get_name(element), mode}) != ran) continue;
      return std::string(features::FakeQuantOptions{element, scheme(mode).recipe}.name());
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

}  // namespace telens::cli
