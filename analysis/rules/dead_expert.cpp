#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "analysis/rules/rules.h"

namespace telens::analysis {
namespace {

// Iterations without tokens, up to the end of the run.
constexpr std::ptrdiff_t kMinIdleIterations = 5;
constexpr std::size_t kMinUsedIterations = 4;  // earlier iterations with tokens
constexpr std::string_view kExpertMark = ".gemm_";

// Returns "moe" for "moe.gemm_3", or "" if the layer is not part of a grouped layer.
std::string get_grouped_layer(const std::string& layer) {
  const auto at = layer.rfind(kExpertMark);
  return at == std::string::npos ? std::string() : layer.substr(0, at);
}

// The iterations in which an expert received tokens.
struct ExpertUse {
  Place place;
  std::size_t iterations_used = 0;
  std::int64_t last = 0;
};

struct ExpertGroup {
  std::vector<ExpertUse> experts;
  std::set<std::int64_t> iterations;  // in which any expert received tokens
};

std::map<std::string, ExpertGroup> group_experts(const Facts& facts) {
  std::map<std::string, ExpertGroup> groups;
  for (const Series* amax : facts.with("cur_amax")) {
    const std::string group = get_grouped_layer(facts.layer_name(amax->place.layer));
    if (group.empty() || amax->place.tensor != TensorName::activation) continue;
    const Series* count = facts.beside(*amax, "numel");
    ExpertUse use{.place = amax->place};
    for (const Point& point : amax->points) {
      if (count != nullptr && count->at(point.iteration) == 0) continue;
      if (count == nullptr && point.value == 0) continue;  // a NaN counts as tokens
      ++use.iterations_used;
      use.last = point.iteration;
      groups[group].iterations.insert(point.iteration);
    }
    groups[group].experts.push_back(use);
  }
  return groups;
}

std::vector<Finding> find_dead_expert(const Facts& facts) {
  std::vector<Finding> found;
  for (const auto& [name, group] : group_experts(facts)) {
    for (const ExpertUse& use : group.experts) {
      const auto missed = group.iterations.upper_bound(use.last);
      const auto idle = std::distance(missed, group.iterations.end());
      if (use.iterations_used < kMinUsedIterations || idle < kMinIdleIterations) continue;
      found.push_back(
          {.cause = "dead_expert",
           .place = use.place,
           .first = *missed,
           .last = *group.iterations.rbegin(),
           .confidence = kProbable,
           .summary = fmt::format("the expert received no tokens in {} recorded iterations, while "
                                  "other experts of {} did",
                                  idle, name),
           .evidence = {{"numel", use.place, *missed, 0, "first iteration without tokens"}}});
    }
  }
  return found;
}

}  // namespace

Rule dead_expert() {
  return {.cause = "dead_expert",
          .title = "expert that no longer receives tokens",
          .doc =
              "An expert of a grouped layer received tokens earlier, but none in at least the last "
              "5 recorded iterations, while other experts of its group did.",
          .stage = Stage::values,
          .required = {"cur_amax"},
          .optional = {"numel"},
          .recorded_by = "LogTensorStats of activations (cur_amax, numel)",
          .alternatives = "A group with more experts than tokens.",
          .next_step =
              "telens plot RUN --layer '{layer}' --tensor activation --stat numel; check the "
              "router's load-balancing loss and logits",
          .find = find_dead_expert};
}

}  // namespace telens::analysis
