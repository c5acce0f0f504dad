#include "analysis/rules/received_gradients.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <optional>
#include <set>
#include <utility>

namespace telens::analysis {
namespace {

// Smallest |mean| in units of rms / sqrt(n), the typical mean of n elements with random signs.
// Rounding to BF16 changes the mean by 2^-9 of this unit, so a tenth of it still shows the factor
// to 2 %. Gradients whose rows sum to zero, as after a LayerNorm or before a softmax, are below
// this limit.
constexpr double kMinMean = 0.1;
constexpr std::size_t kMinGradients = 4;

std::optional<double> get_statistic(const Facts& facts, const Place& place,
                                    std::string_view statistic, std::int64_t iteration) {
  const Series* series = facts.find(place, statistic);
  return series != nullptr ? series->at(iteration) : std::nullopt;
}

Place with_tensor(Place place, TensorName tensor) {
  place.tensor = tensor;
  return place;
}

// Returns the layers whose weight equals another layer's in norm and mean: one weight that two
// layers share.
std::set<std::int32_t> find_sharing_layers(const Facts& facts, std::int64_t iteration) {
  std::map<std::pair<double, double>, std::int32_t> known;
  std::set<std::int32_t> sharing;
  for (const Series* norm : facts.with("l2_norm")) {
    if (norm->place.tensor != TensorName::weight) continue;
    const auto size = norm->at(iteration);
    const auto mean = get_statistic(facts, norm->place, "mean", iteration);
    const auto deviation = get_statistic(facts, norm->place, "std", iteration);
    if (!size || !mean || deviation == 0) continue;  // all gains that start at 1 are equal
    if (!std::isfinite(*size) || !std::isfinite(*mean)) continue;  // NaN has no order
    const auto [at, is_new] = known.try_emplace({*size, *mean}, norm->place.layer);
    if (!is_new) sharing.insert({at->second, norm->place.layer});
  }
  return sharing;
}

// Returns nullopt if a statistic is missing or if the elements of the gradient cancel.
std::optional<ReceivedGradient> compare_gradient(const Facts& facts, const Series& received,
                                                 std::int64_t iteration) {
  const Place& wgrad = received.place;
  const auto mean = received.at(iteration);
  const auto norm = get_statistic(facts, wgrad, "accumulated_norm", iteration);
  const auto mean_of_parts = get_statistic(facts, wgrad, "mean", iteration);
  const auto parts = get_statistic(facts, wgrad, "numel", iteration);
  const auto elements =
      get_statistic(facts, with_tensor(wgrad, TensorName::weight), "numel", iteration);
  const bool has_input = facts.find(with_tensor(wgrad, TensorName::activation), "numel") != nullptr;
  if (!mean || !norm || !mean_of_parts || !parts || !elements || !has_input) return std::nullopt;
  if (!(*elements > 0) || !std::isfinite(*norm) || !std::isfinite(*mean_of_parts))
    return std::nullopt;
  const double passes = *parts / *elements;
  const double sum = *mean_of_parts * passes;
  const double l2 = get_statistic(facts, wgrad, "l2_norm", iteration).value_or(0);
  if (std::abs(sum) * std::sqrt(*elements) < kMinMean * l2 / std::sqrt(*elements) ||
      std::abs(sum) * *elements < kMinMean * l2 || std::abs(*mean) * *elements < kMinMean * *norm) {
    return std::nullopt;
  }
  return ReceivedGradient{.place = wgrad, .factor = *mean / sum, .passes = passes};
}

// Sets the factor that the most gradients share within 5 %. The median is not suitable, because
// half of the gradients may be wrong, each by a different factor.
void set_common_factor(std::vector<double> factors, ReceivedGradients& step) {
  constexpr double kMaxRatio = 1.05;
  std::ranges::sort(factors);
  for (std::size_t begin = 0; begin < factors.size(); ++begin) {
    if (!(factors[begin] > 0)) continue;
    const auto end = std::ranges::upper_bound(factors, factors[begin] * kMaxRatio);
    const auto count = static_cast<std::size_t>(end - factors.begin()) - begin;
    if (count <= step.sharing) continue;
    step.sharing = count;
    step.common = factors[begin + count / 2];
  }
}

}  // namespace

std::set<std::int64_t> measured_iterations(const Facts& facts) {
  std::set<std::int64_t> iterations;
  for (const Series* series : facts.with("accumulated_mean")) {
    for (const Point& point : series->points) iterations.insert(point.iteration);
  }
  return iterations;
}

std::vector<ReceivedGradients> received_gradients(const Facts& facts) {
  std::vector<ReceivedGradients> steps;
  if (facts.ranks() > 1) return steps;
  const auto all = facts.with("accumulated_mean");
  for (const std::int64_t iteration : measured_iterations(facts)) {
    ReceivedGradients step{.iteration = iteration};
    const auto sharing = find_sharing_layers(facts, iteration);
    std::vector<double> factors;
    for (const Series* series : all) {
      if (sharing.contains(series->place.layer)) continue;
      const auto gradient = compare_gradient(facts, *series, iteration);
      if (!gradient) continue;
      step.gradients.push_back(*gradient);
      factors.push_back(gradient->factor);
    }
    if (factors.size() < kMinGradients) continue;
    set_common_factor(std::move(factors), step);
    steps.push_back(std::move(step));
  }
  return steps;
}

}  // namespace telens::analysis
