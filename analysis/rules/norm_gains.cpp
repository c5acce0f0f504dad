#include "analysis/rules/norm_gains.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <cmath>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>

#include "analysis/baseline.h"
#include "analysis/rules/rules.h"

namespace telens::analysis {
namespace {

constexpr std::int64_t kMaxFirstRecord = 2;  // iterations after the start of the run

// A norm in its first iteration.
struct InitialNorm {
  Place place;  // its weight
  std::int64_t iteration = 0;
  double gain = 0;       // root mean square of the gains
  double mean = 0;       // of the gains
  double deviation = 0;  // of the gains
  double input = 0;      // root mean square
  double output = 0;     // root mean square
};

std::optional<double> size(const Facts& facts, Place place, TensorName tensor, std::int64_t at) {
  place.tensor = tensor;
  return root_mean_square(facts, place, at);
}

std::optional<double> value(const Facts& facts, const Place& place, std::string_view statistic,
                            std::int64_t at) {
  const Series* series = facts.find(place, statistic);
  return series != nullptr ? series->at(at) : std::nullopt;
}

std::vector<InitialNorm> list_initial_norms(const Facts& facts) {
  std::vector<InitialNorm> norms;
  for (const Series& gains : root_mean_squares(facts, TensorName::weight)) {
    const Place& place = gains.place;
    if (gains.points.empty() || !is_norm(facts.layer_name(place.layer))) continue;
    const std::int64_t at = gains.points.front().iteration;
    if (at > facts.first_iteration() + kMaxFirstRecord) continue;
    const auto mean = value(facts, place, "mean", at);
    const auto deviation = value(facts, place, "std", at);
    const auto input = size(facts, place, TensorName::activation, at);
    const auto output = size(facts, place, TensorName::output, at);
    if (!mean || !deviation || !input || !output) continue;
    norms.push_back({place, at, gains.points.front().value, *mean, *deviation, *input, *output});
  }
  return norms;
}

// Returns true if the input of the next layer is zero: no residual path bypasses the norm.
bool silences_next(const Facts& facts, const InitialNorm& norm) {
  const Series* next = nullptr;
  const auto inputs = root_mean_squares(facts, TensorName::activation);
  for (const Series& each : inputs) {
    if (each.place.rank != norm.place.rank || each.place.layer <= norm.place.layer) continue;
    if (next == nullptr || each.place.layer < next->place.layer) next = &each;
  }
  return next != nullptr && next->at(norm.iteration) == 0;
}

bool is_near(double value, double expected) {
  constexpr double kTolerance = 0.03;
  return std::abs(value - expected) <= kTolerance * expected;
}

// Returns a clause about the norm, or "" if its gain is as usual.
std::string judge_gain(const Facts& facts, const InitialNorm& norm) {
  if (norm.input > 0 && norm.gain == 0 && norm.output == 0) {
    if (!silences_next(facts, norm)) return "";
    return "the gain of the norm starts at 0, so its output is 0 and no gradient reaches the "
           "layers before it";
  }
  if (norm.deviation == 0 && norm.mean == 1 && is_near(norm.output, 2)) {
    return fmt::format(
        "the output of the norm has a root mean square of {:.3g} with weights of 1: it adds 1 to "
        "its weights, which must start at 0",
        norm.output);
  }
  constexpr double kMaxMean = 0.5;  // relative to the root mean square
  constexpr double kMaxGain = 0.3;
  constexpr double kMaxOutputError = 0.3;
  const bool is_around_zero = norm.gain > 0 && norm.gain < kMaxGain &&
                              std::abs(norm.mean) < kMaxMean * norm.gain &&
                              std::abs(norm.output / norm.gain - 1) < kMaxOutputError;
  if (is_around_zero && norm.deviation > 0) {
    return fmt::format(
        "the gains of the norm are centered at 0 with a root mean square of {:.3g}, as if 1 had "
        "been subtracted from them, but the norm does not add it",
        norm.gain);
  }
  return "";
}

}  // namespace

bool is_norm(std::string_view layer) {
  std::string name(layer.substr(layer.rfind('.') + 1));
  std::ranges::transform(name, name.begin(), [](unsigned char c) { return std::tolower(c); });
  while (!name.empty() &&
         (std::isdigit(static_cast<unsigned char>(name.back())) != 0 || name.back() == '_')) {
    name.pop_back();
  }
  // Excludes "layernorm_linear_qkv", a linear layer after a norm.
  return name.ends_with("norm") || name.starts_with("ln_") || name == "ln" || name.ends_with("_ln");
}

std::vector<Finding> find_wrong_gains(const Facts& facts) {
  std::vector<Finding> found;
  for (const InitialNorm& norm : list_initial_norms(facts)) {
    std::string summary = judge_gain(facts, norm);
    if (summary.empty()) continue;
    Place output = norm.place;
    output.tensor = TensorName::output;
    found.push_back(
        {.cause = "weight_initialization",
         .place = norm.place,
         .first = norm.iteration,
         .last = facts.last_iteration(),
         .confidence = kProven,
         .summary = std::move(summary),
         .evidence = {{"root mean square", norm.place, norm.iteration, norm.gain, ""},
                      {"root mean square", output, norm.iteration, norm.output, ""}},
         .next_step =
             "print the initial weight of '{layer}', and check whether its class multiplies by the "
             "weight or by 1 plus the weight; check _init_weights and the converted checkpoint"});
  }
  return found;
}

}  // namespace telens::analysis
