#include "analysis/rules/received_gradients.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <optional>
#include <set>
#include <utility>

namespace telens::analysis {
namespace {

// The mean of n random signs is 1 / sqrt(n) of the root mean square. Rounding to BF16 changes it by
// 2^-9 of that: a tenth of it still shows the factor to 2 %. Rows that sum to zero, as after a
// LayerNorm or before a softmax, stay below.
constexpr double kLeastMean = 0.1;
constexpr std::size_t kLeastGradients = 4;

std::optional<double> value(const Facts& facts, const Place& place, std::string_view statistic,
                            std::int64_t iteration) {
  const Series* series = facts.find(place, statistic);
  return series != nullptr ? series->at(iteration) : std::nullopt;
}

Place of(Place place, TensorName tensor) {
  place.tensor = tensor;
  return place;
}

// Layers whose weight equals another layer's in norm and mean: one weight in two places.
std::set<std::int32_t> sharing_layers(const Facts& facts, std::int64_t iteration) {
  std::map<std::pair<double, double>, std::int32_t> known;
  std::set<std::int32_t> sharing;
  for (const Series* norm : facts.with("l2_norm")) {
    if (norm->place.tensor != TensorName::weight) continue;
    const auto size = norm->at(iteration);
    const auto mean = value(facts, norm->place, "mean", iteration);
    const auto deviation = value(facts, norm->place, "std", iteration);
    if (!size || !mean || deviation == 0) continue;  // gains that begin as 1 are all equal
    const auto [at, is_new] = known.try_emplace({*size, *mean}, norm->place.layer);
    if (!is_new) sharing.insert({at->second, norm->place.layer});
  }
  return sharing;
}

std::optional<ReceivedGradient> compare(const Facts& facts, const Series& received,
                                        std::int64_t iteration) {
  const Place& wgrad = received.place;
  const auto mean = received.at(iteration);
  const auto norm = value(facts, wgrad, "accumulated_norm", iteration);
  const auto of_parts = value(facts, wgrad, "mean", iteration);
  const auto parts = value(facts, wgrad, "numel", iteration);
  const auto elements = value(facts, of(wgrad, TensorName::weight), "numel", iteration);
  const bool has_input = facts.find(of(wgrad, TensorName::activation), "numel") != nullptr;
  if (!mean || !norm || !of_parts || !parts || !elements || !has_input) return std::nullopt;
  if (!(*elements > 0) || !std::isfinite(*norm) || !std::isfinite(*of_parts)) return std::nullopt;
  const double passes = *parts / *elements;
  const double sum = *of_parts * passes;
  const double l2 = value(facts, wgrad, "l2_norm", iteration).value_or(0);
  if (std::abs(sum) * std::sqrt(*elements) < kLeastMean * l2 / std::sqrt(*elements) ||
      std::abs(sum) * *elements < kLeastMean * l2 ||
      std::abs(*mean) * *elements < kLeastMean * *norm) {
    return std::nullopt;
  }
  return ReceivedGradient{.place = wgrad, .factor = *mean / sum, .passes = passes};
}

// Half of the gradients may be wrong, each by another factor: so not the median, but the factor
// that most gradients are within 5 % of.
void find_common(std::vector<double> factors, ReceivedGradients& step) {
  constexpr double kAlike = 1.05;
  std::ranges::sort(factors);
  for (std::size_t begin = 0; begin < factors.size(); ++begin) {
    if (!(factors[begin] > 0)) continue;
    const auto end = std::ranges::upper_bound(factors, factors[begin] * kAlike);
    const auto count = static_cast<std::size_t>(end - factors.begin()) - begin;
    if (count <= step.sharing) continue;
    step.sharing = count;
    step.common = factors[begin + count / 2];
  }
}

}  // namespace

std::vector<ReceivedGradients> received_gradients(const Facts& facts) {
  std::vector<ReceivedGradients> steps;
  if (facts.ranks() > 1) return steps;
  const auto all = facts.with("accumulated_mean");
  std::set<std::int64_t> iterations;
  for (const Series* series : all) {
    for (const Point& point : series->points) iterations.insert(point.iteration);
  }
  for (const std::int64_t iteration : iterations) {
    ReceivedGradients step{.iteration = iteration};
    const auto sharing = sharing_layers(facts, iteration);
    std::vector<double> factors;
    for (const Series* series : all) {
      if (sharing.contains(series->place.layer)) continue;
      const auto gradient = compare(facts, *series, iteration);
      if (!gradient) continue;
      step.gradients.push_back(*gradient);
      factors.push_back(gradient->factor);
    }
    if (factors.size() < kLeastGradients) continue;
    find_common(std::move(factors), step);
    steps.push_back(std::move(step));
  }
  return steps;
}

}  // namespace telens::analysis
