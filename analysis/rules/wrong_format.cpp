#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <tuple>
#include <vector>

#include "analysis/rules/precision_names.h"
#include "analysis/rules/rules.h"

namespace telens::analysis {
namespace {

constexpr double kMinUsualShare = 0.7;  // share of the operands that must have the usual format
constexpr std::size_t kMinOperands = 3;

struct CastOperand {
  const GemmState* state = nullptr;
  std::string ran;
};

// Returns true if the recipe chose the format. Weights that are stored quantized and operands that
// a feature modifies are intended exceptions.
bool is_by_recipe(const GemmState& state, const std::string& tensor) {
  return state.detail(tensor + " cause").starts_with("the recipe wants it so");
}

Finding wrong_format_finding(const Facts& facts, const CastOperand& operand, TensorName tensor,
                             const std::string& usual) {
  Place place = operand.state->place;
  place.tensor = tensor;
  return {
      .cause = "wrong_format",
      .place = place,
      .first = operand.state->iteration,
      .last = facts.last_iteration(),
      .confidence = kProbable,
      .summary = fmt::format("the tensor is cast to {}, but the {}s of other layers are cast to {}",
                             operand.ran, get_name(tensor), usual),
      .evidence = {{"ledger: ran " + operand.ran, place, operand.state->iteration, 0, ""}}};
}

struct FormatChange {
  Place place;
  std::int64_t iteration = 0;
  std::string before, after;
};

// Returns each change of a tensor's format.
std::vector<FormatChange> list_changes(const Facts& facts) {
  std::vector<FormatChange> found;
  std::map<std::tuple<int, std::int32_t, std::optional<Gemm>, TensorName>, CastOperand> last;
  for (const GemmState& state : facts.gemm_states()) {
    for (const TensorName tensor : kAllTensors) {
      const std::string name(get_name(tensor));
      const std::string ran = state.detail(name + " ran");
      if (ran.empty() || !is_by_recipe(state, name) || is_high_precision(ran)) continue;
      CastOperand& before = last[{state.place.rank, state.place.layer, state.place.gemm, tensor}];
      if (before.state != nullptr && before.ran != ran) {
        Place place = state.place;
        place.tensor = tensor;
        found.push_back({place, state.iteration, before.ran, ran});
      }
      before = {&state, ran};
    }
  }
  return found;
}

// Returns the first change as a finding; within an iteration, the first in training order.
std::vector<Finding> find_changed_format(const Facts& facts) {
  const std::vector<FormatChange> all = list_changes(facts);
  if (all.empty()) return {};
  const auto key = [](const FormatChange& change) {
    return std::pair(change.iteration, get_order_in_step(change.place));
  };
  const FormatChange& first = *std::ranges::min_element(all, {}, key);
  std::set<std::int32_t> layers;
  for (const FormatChange& each : all) layers.insert(each.place.layer);
  return {{.cause = "wrong_format",
           .place = first.place,
           .first = first.iteration,
           .last = facts.last_iteration(),
           .confidence = kProbable,
           .summary = fmt::format("the format of the cast changes from {} to {}{}", first.before,
                                  first.after, and_others(layers.size() - 1, "layer")),
           .evidence = {{"ledger: ran " + first.after, first.place, first.iteration, 0, ""}}}};
}

// Returns the number of reads in which at least 10 % of the elements become zero.
std::int64_t count_underflows(const Series& percent) {
  constexpr double kMinUnderflowPercent = 10;
  return std::ranges::count_if(
      percent.points, [](const Point& point) { return point.value >= kMinUnderflowPercent; });
}

// Detects underflowing gradients in E4M3 with one scale per tensor. E5M2 covers 15 more powers of
// two.
std::vector<Finding> find_narrow_gradients(const Facts& facts) {
  constexpr std::int64_t kMinReads = 4;
  for (const GemmState& state : facts.gemm_states()) {
    const std::string ran = state.detail("gradient ran");
    if (!ran.starts_with("E4M3") || scaling_in(ran) != kTensorScaling) continue;
    if (!is_by_recipe(state, "gradient")) continue;
    Place place = state.place;
    place.tensor = TensorName::gradient;
    const Series* percent = facts.find(place, "underflows%");
    if (percent == nullptr || count_underflows(*percent) < kMinReads) continue;
    const Point& worst = *std::ranges::max_element(percent->points, {}, &Point::value);
    return {{.cause = "wrong_format",
             .place = place,
             .first = state.iteration,
             .last = facts.last_iteration(),
             .confidence = kProbable,
             .summary = fmt::format(
                 "gradients are cast to E4M3 with one scale per tensor, and up to {:.3g} % of the "
                 "elements become zero; E5M2 covers 15 more powers of two",
                 worst.value),
             .evidence = {{"ledger: ran " + ran, place, state.iteration, 0, ""},
                          {"underflows%", place, worst.iteration, worst.value, "largest"}}}};
  }
  return {};
}

std::vector<Finding> find_wrong_format(const Facts& facts) {
  std::vector<Finding> found;
  for (const TensorName tensor : kAllTensors) {
    const std::string name(get_name(tensor));
    std::map<std::optional<Gemm>, std::vector<CastOperand>> by_gemm;
    for (const GemmState& state : facts.gemm_states()) {
      const std::string ran = state.detail(name + " ran");
      if (!ran.empty() && is_by_recipe(state, name)) {
        by_gemm[state.place.gemm].push_back({&state, ran});
      }
    }
    for (const auto& [gemm, operands] : by_gemm) {
      std::map<std::string, std::size_t> counts;
      for (const CastOperand& each : operands) ++counts[each.ran];
      const auto usual =
          std::ranges::max_element(counts, {}, [](const auto& row) { return row.second; });
      if (operands.size() < kMinOperands || counts.size() < 2) continue;
      if (static_cast<double>(usual->second) <
          kMinUsualShare * static_cast<double>(operands.size()))
        continue;
      for (const CastOperand& each : operands) {
        if (each.ran != usual->first)
          found.push_back(wrong_format_finding(facts, each, tensor, usual->first));
      }
    }
  }
  if (found.empty()) found = find_changed_format(facts);
  return found.empty() ? find_narrow_gradients(facts) : found;
}

}  // namespace

Rule wrong_format() {
  return {
      .cause = "wrong_format",
      .title = "format that differs from other layers",
      .doc =
          "According to the ledger, the recipe of a layer casts a tensor to a different element "
          "format or scales it differently than most layers do, for example a gradient in E4M3 "
          "instead of E5M2. Also reported: a format that changes during the training, and E4M3 "
          "with one scale per tensor for gradients of which at least a tenth become zero.",
      .stage = Stage::setup,
      .optional = {"underflows%"},
      .needs_ledger = true,
      .recorded_by = "PrecisionLedger",
      .alternatives = "A second recipe that part of the model uses on purpose.",
      .next_step = "telens ledger RUN --layer '{layer}'",
      .find = find_wrong_format};
}

}  // namespace telens::analysis
