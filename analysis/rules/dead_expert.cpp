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

constexpr std::ptrdiff_t kLeastIdle = 5;  // reads of the group up to the end of the run
constexpr std::size_t kLeastReads = 4;    // before
constexpr std::string_view kExpert = ".gemm_";

// "moe.gemm_3" -> "moe"; "" if the layer is not part of a grouped layer.
std::string find_group(const std::string& layer) {
  const auto at = layer.rfind(kExpert);
  return at == std::string::npos ? std::string() : layer.substr(0, at);
}

// Reads of an expert's input that hold anything.
struct Use {
  Place place;
  std::size_t reads = 0;
  std::int64_t last = 0;
};

struct Group {
  std::vector<Use> experts;
  std::set<std::int64_t> iterations;  // in which any of them was used
};

std::map<std::string, Group> uses(const Facts& facts) {
  std::map<std::string, Group> groups;
  for (const Series* amax : facts.with("cur_amax")) {
    const std::string group = find_group(facts.layer_name(amax->place.layer));
    if (group.empty() || amax->place.tensor != TensorName::activation) continue;
    const Series* count = facts.beside(*amax, "numel");
    Use use{.place = amax->place};
    for (const Point& point : amax->points) {
      if (count != nullptr && count->at(point.iteration) == 0) continue;
      if (count == nullptr && point.value == 0) continue;  // a NaN went through it
      ++use.reads;
      use.last = point.iteration;
      groups[group].iterations.insert(point.iteration);
    }
    groups[group].experts.push_back(use);
  }
  return groups;
}

std::vector<Finding> find_dead_expert(const Facts& facts) {
  std::vector<Finding> found;
  for (const auto& [name, group] : uses(facts)) {
    for (const Use& use : group.experts) {
      const auto missed = group.iterations.upper_bound(use.last);
      const auto idle = std::distance(missed, group.iterations.end());
      if (use.reads < kLeastReads || idle < kLeastIdle) continue;
      found.push_back(
          {.cause = "dead_expert",
           .place = use.place,
           .first = *missed,
           .last = *group.iterations.rbegin(),
           .confidence = kProbable,
           .summary = fmt::format(
               "it receives no tokens in {} recorded iterations, while other experts of {} do",
               idle, name),
           .evidence = {{"numel", use.place, use.last, 0, "the last iteration with anything"}}});
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
              "telens plot RUN --layer '{layer}' --tensor activation --stat numel; look at the "
              "router: its load-balancing loss, its logits",
          .find = find_dead_expert};
}

}  // namespace telens::analysis
