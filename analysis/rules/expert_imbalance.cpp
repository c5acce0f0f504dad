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

// Experts that are chosen at random by T tokens vary by sqrt(E / T) of the mean; a balanced router
// keeps the busiest below twice the mean. A third of all places at one of four experts and more is
// three times the mean for up to 12 experts and shows in every step.
constexpr double kMost = 3;
constexpr std::size_t kLeastExperts = 4;
constexpr std::size_t kSustained = 10;  // iterations up to the end of the run

struct Expert {
  Place place;
  const Series* elements = nullptr;
};

// "layers.0.mlp.experts.3.up_proj" -> {"layers.0.mlp.experts.*.up_proj"}; also "moe.gemm_3".
std::optional<std::string> find_group(const std::string& layer) {
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

struct Load {
  std::int64_t iteration = 0;
  double ratio = 0;  // of the busiest expert to the mean
  std::size_t busiest = 0;
};

std::vector<Load> loads(const std::vector<Expert>& experts) {
  std::map<std::int64_t, std::vector<double>> tokens;
  for (std::size_t i = 0; i < experts.size(); ++i) {
    for (const auto& [iteration, elements] : experts[i].elements->points) {
      auto& of_iteration = tokens[iteration];
      of_iteration.resize(experts.size());
      of_iteration[i] = elements;
    }
  }
  std::vector<Load> found;
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
    const auto group = find_group(facts.layer_name(elements->place.layer));
    if (group) groups[{elements->place.rank, *group}].push_back({elements->place, elements});
  }
  std::vector<Finding> found;
  for (const auto& [name, experts] : groups) {
    if (experts.size() < kLeastExperts) continue;
    const std::vector<Load> all = loads(experts);
    std::size_t first = all.size();
    // Few tokens at random can exceed the limit in every iteration, but for another expert each
    // time.
    const auto is_same = [&](const Load& load) {
      return load.ratio >= kMost && load.busiest == all.back().busiest;
    };
    while (first > 0 && is_same(all[first - 1])) --first;
    if (all.size() - first < kSustained) continue;
    const Load& last = all.back();
    found.push_back({.cause = "expert_imbalance",
                     .place = experts[last.busiest].place,
                     .first = all[first].iteration,
                     .last = last.iteration,
                     .confidence = kProbable,
                     .summary = fmt::format(
                         "one of {} experts receives {:.3g} times the mean number of tokens, and "
                         "at least {:.0f} times in each of the last {} recorded iterations",
                         experts.size(), last.ratio, kMost, all.size() - first),
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
  return {
      .cause = "expert_imbalance",
      .title = "expert that receives most of the tokens",
      .doc =
          "One of at least 4 experts of a layer, always the same, receives 3 times the mean number "
          "of tokens or more in each of at least the last 10 recorded iterations. Experts are "
          "layers of the same "
          "name except for the number after `experts.` or `gemm_`. Visible from the tenth recorded "
          "iteration on.",
      .stage = Stage::values,
      .required = {"numel"},
      .recorded_by = "LogTensorStats of activations (numel)",
      .alternatives = "Data of one kind, for which a single expert is best.",
      .next_step =
          "telens plot RUN --layer '{layer}' --tensor activation --stat numel; check that the "
          "balancing loss reaches the router (its gradient, its coefficient), or that the bias for "
          "balancing is updated",
      .find = find_expert_imbalance};
}

}  // namespace telens::analysis
