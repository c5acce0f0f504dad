#include "analysis/rules/norm_gains.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <cmath>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>

#include "analysis/rules/rules.h"
#include "analysis/sizes.h"

namespace telens::analysis {
namespace {

constexpr std::int64_t kBeginning = 2;  // iterations

// A norm in the first iteration, in root mean squares.
struct Norm {
  Place place;  // its weight
  std::int64_t iteration = 0;
  double gain = 0;
  double mean = 0;
  double deviation = 0;
  double input = 0;
  double output = 0;
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

std::vector<Norm> first_norms(const Facts& facts) {
  std::vector<Norm> norms;
  for (const Series& gains : root_mean_squares(facts, TensorName::weight)) {
    const Place& place = gains.place;
    if (gains.points.empty() || !is_norm(facts.layer_name(place.layer))) continue;
    const std::int64_t at = gains.points.front().iteration;
    if (at > facts.first_iteration() + kBeginning) continue;
    const auto mean = value(facts, place, "mean", at);
    const auto deviation = value(facts, place, "std", at);
    const auto input = size(facts, place, TensorName::activation, at);
    const auto output = size(facts, place, TensorName::output, at);
    if (!mean || !deviation || !input || !output) continue;
    norms.push_back({place, at, gains.points.front().value, *mean, *deviation, *input, *output});
  }
  return norms;
}

// The input of the layer after this one is zero: nothing goes around the norm.
bool silences_next(const Facts& facts, const Norm& norm) {
  const Series* next = nullptr;
  const auto inputs = root_mean_squares(facts, TensorName::activation);
  for (const Series& each : inputs) {
    if (each.place.rank != norm.place.rank || each.place.layer <= norm.place.layer) continue;
    if (next == nullptr || each.place.layer < next->place.layer) next = &each;
  }
  return next != nullptr && next->at(norm.iteration) == 0;
}

bool is_nearly(double value, double expected) {
  constexpr double kNearly = 0.03;
  return std::abs(value - expected) <= kNearly * expected;
}

// A sentence about the norm, or "" if its gain is usual.
std::string judge(const Facts& facts, const Norm& norm) {
  if (norm.input > 0 && norm.gain == 0 && norm.output == 0) {
    if (!silences_next(facts, norm)) return "";
    return "the gain of the norm begins as 0, so its output is 0 and no gradient reaches the "
           "layers "
           "before it";
  }
  if (norm.deviation == 0 && norm.mean == 1 && is_nearly(norm.output, 2)) {
    return fmt::format(
        "the output of the norm has a root mean square of {:.3g} with weights of 1: it "
        "adds one to its weights, which have to begin as 0",
        norm.output);
  }
  constexpr double kCentered = 0.5;  // of the root mean square
  constexpr double kSmall = 0.3;
  constexpr double kAlike = 0.3;
  const bool is_around_zero = norm.gain > 0 && norm.gain < kSmall &&
                              std::abs(norm.mean) < kCentered * norm.gain &&
                              std::abs(norm.output / norm.gain - 1) < kAlike;
  if (is_around_zero && norm.deviation > 0) {
    return fmt::format(
        "the gains of the norm are centered at 0 with a root mean square of {:.3g}, as if one "
        "had been subtracted from them, and the norm does not add it",
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
  // Not "layernorm_linear_qkv", which is a product after a norm.
  return name.ends_with("norm") || name.starts_with("ln_") || name == "ln" || name.ends_with("_ln");
}

std::vector<Finding> wrong_gains(const Facts& facts) {
  std::vector<Finding> found;
  for (const Norm& norm : first_norms(facts)) {
    std::string summary = judge(facts, norm);
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
             "print the weight of '{layer}' at the start, and whether its class multiplies by the "
             "weight or by one plus the weight; check _init_weights and the converted checkpoint"});
  }
  return found;
}

}  // namespace telens::analysis
