#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "analysis/rules/rules.h"
#include "analysis/sizes.h"

namespace telens::analysis {
namespace {

constexpr std::size_t kLeastReads = 5;   // on end, up to the end of the run, without a gradient
constexpr std::size_t kLeastBefore = 4;  // earlier reads with a gradient, if there were any
constexpr double kRegular = 0.9;  // part of the reads before: else gradients come now and then

// A layer that was used in the forward passes of iterations in which some layer had a gradient.
struct Used {
  const Series* activation = nullptr;
  std::size_t with = 0;                    // iterations in which this layer had a gradient
  std::size_t until = 0;                   // how many there were up to the last one of these
  std::vector<std::int64_t> without = {};  // since then

  bool is_reached() const { return with > 0 && without.size() < kLeastReads; }
  bool is_lost() const {
    if (without.size() < kLeastReads) return false;
    const bool regular = static_cast<double>(with) >= kRegular * static_cast<double>(until);
    return with == 0 || (with >= kLeastBefore && regular);
  }
  std::int32_t layer() const { return activation->place.layer; }
};

using Passes = std::set<std::int64_t>;

// Iterations in which any layer had a gradient, for each rank.
std::map<int, Passes> backward_passes(const std::vector<Series>& gradients) {
  std::map<int, Passes> passes;
  for (const Series& gradient : gradients) {
    for (const Point& point : gradient.points) passes[gradient.place.rank].insert(point.iteration);
  }
  return passes;
}

Used used(const Series& activation, const Series* gradient, const Passes& passes) {
  Used layer{.activation = &activation};
  std::size_t reads = 0;
  for (const auto& [iteration, size] : activation.points) {
    if (size == 0 || !passes.contains(iteration)) continue;  // an expert without tokens
    ++reads;
    if (gradient != nullptr && gradient->at(iteration)) {
      ++layer.with;
      layer.until = reads;
      layer.without.clear();
    } else {
      layer.without.push_back(iteration);
    }
  }
  return layer;
}

// In forward order, grouped by rank.
std::vector<Used> used_layers(const Facts& facts, const std::vector<Series>& activations,
                              const std::vector<Series>& gradients) {
  std::map<int, Passes> passes = backward_passes(gradients);
  std::vector<Used> layers;
  for (const Series& activation : activations) {
    const auto of_layer = [&](const Series& gradient) {
      return gradient.place.layer == activation.place.layer &&
             gradient.place.rank == activation.place.rank;
    };
    const auto gradient = std::ranges::find_if(gradients, of_layer);
    const Series* own = gradient == gradients.end() ? nullptr : &*gradient;
    layers.push_back(used(activation, own, passes[activation.place.rank]));
  }
  std::ranges::stable_sort(layers, {},
                           [](const Used& each) { return each.activation->place.rank; });
  return layers;
}

// "layers.3" of "layers.3.mlp.fc1"; a name without a number is its own block.
std::string_view get_block(const std::string& name) {
  const std::size_t number = name.find_first_of("0123456789");
  if (number == std::string::npos) return name;
  const std::size_t end = name.find_first_not_of("0123456789", number);
  return std::string_view(name).substr(0, end);
}

// Layers without a gradient may be intended: a frozen front of a model, block by block, or a
// separate model that is only evaluated.
bool may_be_meant(const Facts& facts, const std::vector<const Used*>& lost,
                  const std::vector<const Used*>& reached) {
  const Used& origin = *lost.back();
  const bool any_before = std::ranges::any_of(
      reached, [&](const Used* each) { return each->layer() < origin.layer(); });
  const auto in_block = [&](const Used* each) {
    return get_block(facts.layer_name(each->layer())) ==
           get_block(facts.layer_name(origin.layer()));
  };
  if (!any_before && std::ranges::none_of(reached, in_block)) return true;
  if (origin.with > 0) return false;
  const auto plays_the_part = [&](const Used* each) {
    return facts.select_part(each->layer()) == facts.select_part(origin.layer());
  };
  return std::ranges::count_if(reached, plays_the_part) <
         std::ranges::count_if(lost, plays_the_part);
}

std::string nor_others(std::size_t others) {
  if (others == 0) return "";
  return fmt::format(", nor do{} {} layer{} before it", others == 1 ? "es" : "", others,
                     others == 1 ? "" : "s");
}

Finding detached_layer_finding(const Facts& facts, const std::vector<const Used*>& lost,
                               const std::vector<Series>& gradients) {
  const Used& origin = *lost.back();
  Place place = origin.activation->place;
  const std::int64_t first = origin.without.front();
  Finding finding{.cause = "detached_layer",
                  .place = place,
                  .first = first,
                  .last = origin.without.back(),
                  // From the start it may be that no section selects its gradient.
                  .confidence = origin.with > 0 ? kProven : kPossible,
                  .summary = fmt::format(
                      "the layer is used in the forward pass and gets no gradient{}{}: no step "
                      "trains its weight",
                      origin.with > 0 ? " any more" : "", nor_others(lost.size() - 1))};
  finding.place.tensor = TensorName::gradient;
  finding.evidence.push_back(
      {"root mean square", place, first, *origin.activation->at(first), "of its activation"});
  for (const Series& gradient : gradients) {
    if (gradient.place.rank != place.rank) continue;
    const auto now = gradient.at(first);
    if (gradient.place.layer == place.layer) {
      const Point* before = gradient.before(first);
      if (before == nullptr) continue;
      finding.evidence.push_back({"root mean square", gradient.place, before->iteration,
                                  before->value, "of its last gradient"});
    } else if (now && gradient.place.layer < place.layer) {
      finding.evidence.push_back({"root mean square", gradient.place, first, *now,
                                  "gradient of " + facts.layer_name(gradient.place.layer)});
      break;
    }
  }
  return finding;
}

// Layers on one rank that lost their gradient in the same iteration, in forward order.
std::vector<Finding> of_rank(const Facts& facts, const std::vector<const Used*>& layers,
                             const std::vector<Series>& gradients) {
  std::vector<const Used*> reached;
  std::map<std::int64_t, std::vector<const Used*>> lost;
  for (const Used* each : layers) {
    if (each->is_reached()) reached.push_back(each);
    if (each->is_lost()) lost[each->without.front()].push_back(each);
  }
  std::vector<Finding> found;
  if (reached.empty()) return found;
  for (const auto& [first, together] : lost) {
    if (may_be_meant(facts, together, reached)) continue;
    found.push_back(detached_layer_finding(facts, together, gradients));
  }
  return found;
}

std::vector<Finding> find_detached_layer(const Facts& facts) {
  const std::vector<Series> activations = root_mean_squares(facts, TensorName::activation);
  const std::vector<Series> gradients = root_mean_squares(facts, TensorName::gradient);
  const std::vector<Used> layers = used_layers(facts, activations, gradients);
  std::map<int, std::vector<const Used*>> by_rank;
  for (const Used& each : layers) by_rank[each.activation->place.rank].push_back(&each);
  std::vector<Finding> found;
  for (const auto& [rank, of_it] : by_rank) {
    for (Finding& each : of_rank(facts, of_it, gradients)) found.push_back(std::move(each));
  }
  return found;
}

}  // namespace

Rule detached_layer() {
  return {
      .cause = "detached_layer",
      .title = "layer not reached by the backward pass",
      .doc =
          "A layer has inputs but no gradient of its output in at least the last 5 recorded "
          "iterations, while other layers have one. If several layers qualify, the layer nearest "
          "to the loss is the origin. Not reported, because this is usually intended: whole frozen "
          "blocks at the front of a model, layers that have no trained sibling from the start, "
          "layers that pass a gradient on but have no weight gradient, and experts without tokens.",
      .stage = Stage::update,
      .required = {kSizes},
      .optional = {"numel", "mean"},
      .recorded_by =
          "LogTensorStats of activations and gradients (l2_norm and numel, or std and mean)",
      .alternatives =
          "A part of the model that no loss uses from this iteration on, or that runs under "
          "no_grad() on purpose; if it never had a gradient, a configuration that does not select "
          "its gradient.",
      .next_step =
          "look for detach(), .data, .item(), torch.no_grad() or a re-created tensor between "
          "'{layer}' and the loss; telens stats RUN --layer '{layer}' --tensor gradient --stat "
          "l2_norm",
      .find = find_detached_layer};
}

}  // namespace telens::analysis
