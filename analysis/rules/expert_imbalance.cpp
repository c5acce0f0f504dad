#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "analysis/rules/rules.h"

namespace telens::analysis {
namespace {

// Tokens of the busiest expert divided by the mean. If T tokens choose among E experts at random,
// the load varies by sqrt(E / T) of the mean; a balanced router keeps the busiest expert below
// twice the mean. Three times the mean is 3/4 of all tokens for 4 experts and 1/4 for 12.
constexpr double kMinBusiestLoad = 3;
constexpr std::size_t kMinExperts = 4;
constexpr std::size_t kMinImbalancedIterations = 10;  // iterations up to the end of the run

struct Expert {
  Place place;
  const Series* elements = nullptr;
};

// Returns "layers.0.mlp.experts.*.up_proj" for "layers.0.mlp.experts.3.up_proj", and "moe.gemm_*"
// for "moe.gemm_3"; nullopt if the layer is not an expert.
std::optional<std::string> get_expert_group(const std::string& layer) {
  for (const std::string_view mark : {"experts.", "gemm_"}) {
    const auto at = layer.rfind(mark);
    if (at == std::string::npos) continue;
    const std::size_t begin = at + mark.size();
    const std::size_t end = std::min(layer.find('.', begin), layer.size());
    const std::string number = layer.substr(begin, end - begin);
    if (number.empty() || number.find_first_not_of("0123456789") != std::string::npos) continue;
    return layer.substr(0, begin) + "*" + layer.substr(end);
  }
  return std::nullopt;
}

struct ExpertLoad {
  std::int64_t iteration = 0;
  double ratio = 0;  // of the busiest expert to the mean
  std::size_t busiest = 0;
};

std::vector<ExpertLoad> compute_loads(const std::vector<Expert>& experts) {
  std::map<std::int64_t, std::vector<double>> tokens;
  for (std::size_t i = 0; i < experts.size(); ++i) {
    for (const auto& [iteration, elements] : experts[i].elements->points) {
      auto& counts = tokens[iteration];
      counts.resize(experts.size());
      counts[i] = elements;
    }
  }
  std::vector<ExpertLoad> found;
  for (const auto& [iteration, elements] : tokens) {
    double sum = 0;
    for (const double each : elements) sum += each;
    if (!(sum > 0)) continue;
    const auto largest = std::ranges::max_element(elements);
    found.push_back({iteration, *largest * static_cast<double>(experts.size()) / sum,
                     static_cast<std::size_t>(largest - elements.begin())});
  }
  return found;
}

std::vector<Finding> find_expert_imbalance(const Facts& facts) {
  std::map<std::pair<int, std::string>, std::vector<Expert>> groups;
  for (const Series* elements : facts.with("numel")) {
    if (elements->place.tensor != TensorName::activation) continue;
    const auto group = get_expert_group(facts.layer_name(elements->place.layer));
    if (group) groups[{elements->place.rank, *group}].push_back({elements->place, elements});
  }
  std::vector<Finding> found;
  for (const auto& [name, experts] : groups) {
    if (experts.size() < kMinExperts) continue;
    const std::vector<ExpertLoad> all = compute_loads(experts);
    std::size_t first = all.size();
    // Random routing of few tokens can exceed the limit in every iteration, but with a different
    // expert each time.
    const auto is_overloaded = [&](const ExpertLoad& load) {
      return load.ratio >= kMinBusiestLoad && load.busiest == all.back().busiest;
    };
    while (first > 0 && is_overloaded(all[first - 1])) --first;
    if (all.size() - first < kMinImbalancedIterations) continue;
    const ExpertLoad& last = all.back();
    found.push_back({.cause = "expert_imbalance",
                     .place = experts[last.busiest].place,
                     .first = all[first].iteration,
                     .last = last.iteration,
                     .confidence = kProbable,
                     .summary = fmt::format(
                         "one of {} experts receives {:.3g} times the mean number of tokens, and "
                         "at least {:.0f} times in each of the last {} recorded iterations",
                         experts.size(), last.ratio, kMinBusiestLoad, all.size() - first),
                     .evidence = {{"tokens / mean", experts[last.busiest].place,
                                   all[first].iteration, all[first].ratio, ""},
                                  {"tokens / mean", experts[last.busiest].place, last.iteration,
                                   last.ratio, ""}},
                     .gradual = true});
  }
  return found;
}

}  // namespace

Rule expert_imbalance() {
  return {.cause = "expert_imbalance",
          .title = "expert that receives most of the tokens",
          .doc =
              "One of at least 4 experts of a layer, always the same, receives 3 times the mean "
              "number of tokens or more in each of at least the last 10 recorded iterations. "
              "Experts are layers of the same name except for the number after `experts.` or "
              "`gemm_`. Visible from the tenth recorded iteration on.",
          .stage = Stage::values,
          .required = {"numel"},
          .recorded_by = "LogTensorStats of activations (numel)",
          .alternatives = "Uniform data, for which a single expert is best.",
          .next_step =
              "telens plot RUN --layer '{layer}' --tensor activation --stat numel; check that the "
              "load-balancing loss reaches the router (gradient, coefficient), or that the "
              "balancing bias is updated",
          .find = find_expert_imbalance};
}

}  // namespace telens::analysis
