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

#include "analysis/baseline.h"
#include "analysis/rules/rules.h"

namespace telens::analysis {
namespace {

// Consecutive reads without a gradient, up to the end of the run.
constexpr std::size_t kMinReadsWithout = 5;
constexpr std::size_t kMinReadsWith = 4;  // earlier reads with a gradient, if there were any
// Share of the earlier reads; if lower, gradients are occasional.
constexpr double kMinRegularShare = 0.9;

// The forward passes of a layer in iterations in which any layer of the rank had a gradient.
struct LayerUse {
  const Series* activation = nullptr;
  std::size_t with_gradient = 0;                    // iterations in which this layer had a gradient
  std::size_t reads_to_last = 0;                    // iterations up to the last of these
  std::vector<std::int64_t> without_gradient = {};  // iterations after it

  bool is_reached() const {
    return with_gradient > 0 && without_gradient.size() < kMinReadsWithout;
  }
  bool is_lost() const {
    if (without_gradient.size() < kMinReadsWithout) return false;
    const bool regular =
        static_cast<double>(with_gradient) >= kMinRegularShare * static_cast<double>(reads_to_last);
    return with_gradient == 0 || (with_gradient >= kMinReadsWith && regular);
  }
  std::int32_t layer() const { return activation->place.layer; }
};

using BackwardPasses = std::set<std::int64_t>;

// Returns the iterations in which any layer had a gradient, by rank.
std::map<int, BackwardPasses> backward_passes(const std::vector<Series>& gradients) {
  std::map<int, BackwardPasses> passes;
  for (const Series& gradient : gradients) {
    for (const Point& point : gradient.points) passes[gradient.place.rank].insert(point.iteration);
  }
  return passes;
}

LayerUse summarize_use(const Series& activation, const Series* gradient,
                       const BackwardPasses& passes) {
  LayerUse layer{.activation = &activation};
  std::size_t reads = 0;
  for (const auto& [iteration, size] : activation.points) {
    if (size == 0 || !passes.contains(iteration)) continue;  // an expert without tokens
    ++reads;
    if (gradient != nullptr && gradient->at(iteration)) {
      ++layer.with_gradient;
      layer.reads_to_last = reads;
      layer.without_gradient.clear();
    } else {
      layer.without_gradient.push_back(iteration);
    }
  }
  return layer;
}

// Returns the layers in forward order, grouped by rank.
std::vector<LayerUse> list_layer_uses(const Facts& facts, const std::vector<Series>& activations,
                                      const std::vector<Series>& gradients) {
  std::map<int, BackwardPasses> passes = backward_passes(gradients);
  std::vector<LayerUse> layers;
  for (const Series& activation : activations) {
    const auto of_layer = [&](const Series& gradient) {
      return gradient.place.layer == activation.place.layer &&
             gradient.place.rank == activation.place.rank;
    };
    const auto gradient = std::ranges::find_if(gradients, of_layer);
    const Series* own = gradient == gradients.end() ? nullptr : &*gradient;
    layers.push_back(summarize_use(activation, own, passes[activation.place.rank]));
  }
  std::ranges::stable_sort(layers, {},
                           [](const LayerUse& each) { return each.activation->place.rank; });
  return layers;
}

// Returns "layers.3" for "layers.3.mlp.fc1". A name without a number is its own block.
std::string_view get_block_name(const std::string& name) {
  const std::size_t number = name.find_first_of("0123456789");
  if (number == std::string::npos) return name;
  const std::size_t end = name.find_first_not_of("0123456789", number);
  return std::string_view(name).substr(0, end);
}

// Returns true if the missing gradients may be intended: frozen blocks at the front of a model, or
// a separate model that is only evaluated.
bool may_be_intended(const Facts& facts, const std::vector<const LayerUse*>& lost,
                     const std::vector<const LayerUse*>& reached) {
  const LayerUse& origin = *lost.back();
  const bool is_any_reached_before = std::ranges::any_of(
      reached, [&](const LayerUse* each) { return each->layer() < origin.layer(); });
  const auto is_in_block = [&](const LayerUse* each) {
    return get_block_name(facts.layer_name(each->layer())) ==
           get_block_name(facts.layer_name(origin.layer()));
  };
  if (!is_any_reached_before && std::ranges::none_of(reached, is_in_block)) return true;
  if (origin.with_gradient > 0) return false;
  const auto has_same_part = [&](const LayerUse* each) {
    return facts.select_part(each->layer()) == facts.select_part(origin.layer());
  };
  return std::ranges::count_if(reached, has_same_part) < std::ranges::count_if(lost, has_same_part);
}

std::string describe_others(std::size_t others) {
  if (others == 0) return "";
  return fmt::format("; also affects {} layer{} before it", others, others == 1 ? "" : "s");
}

Finding detached_layer_finding(const Facts& facts, const std::vector<const LayerUse*>& lost,
                               const std::vector<Series>& gradients) {
  const LayerUse& origin = *lost.back();
  Place place = origin.activation->place;
  const std::int64_t first = origin.without_gradient.front();
  Finding finding{
      .cause = "detached_layer",
      .place = place,
      .first = first,
      .last = origin.without_gradient.back(),
      // If it never had a gradient, the configuration may not select the gradient.
      .confidence = origin.with_gradient > 0 ? kProven : kPossible,
      .summary = fmt::format(
          "the layer is used in the forward pass but {}, so its weight is not trained{}",
          origin.with_gradient > 0 ? "no longer receives a gradient" : "receives no gradient",
          describe_others(lost.size() - 1))};
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

// Returns true if optimizers were measured and none of them trains the weight of the layer.
bool is_known_frozen(const Facts& facts, const LayerUse& layer) {
  Place place = layer.activation->place;
  place.tensor = TensorName::wgrad;
  return facts.has("accumulated_norm") && facts.find(place, "accumulated_norm") == nullptr &&
         facts.find(place, "missing") == nullptr;
}

// Returns a finding for each iteration in which layers of one rank lost their gradient. `layers`
// are in forward order.
std::vector<Finding> find_on_rank(const Facts& facts, const std::vector<const LayerUse*>& layers,
                                  const std::vector<Series>& gradients) {
  std::vector<const LayerUse*> reached;
  std::map<std::int64_t, std::vector<const LayerUse*>> lost;
  for (const LayerUse* each : layers) {
    if (each->is_reached()) reached.push_back(each);
    const bool never_had_one = each->with_gradient == 0 && is_known_frozen(facts, *each);
    if (each->is_lost() && !never_had_one) lost[each->without_gradient.front()].push_back(each);
  }
  std::vector<Finding> found;
  if (reached.empty()) return found;
  for (const auto& [first, group] : lost) {
    if (may_be_intended(facts, group, reached)) continue;
    found.push_back(detached_layer_finding(facts, group, gradients));
  }
  return found;
}

// Finds weights that the optimizer trains and that never had a gradient when its steps were
// measured, although their layers were used. Returns the layer nearest to the loss of each rank.
std::vector<Finding> find_missing_gradients(const Facts& facts,
                                            const std::vector<LayerUse>& layers) {
  constexpr std::size_t kMinMeasuredSteps = 2;
  std::map<int, Finding> by_rank;
  std::map<int, std::size_t> others;
  for (const LayerUse& layer : layers) {
    Place place = layer.activation->place;
    place.tensor = TensorName::wgrad;
    const Series* missing = facts.find(place, "missing");
    if (missing == nullptr || facts.find(place, "accumulated_norm") != nullptr) continue;
    const auto was_used = std::ranges::count_if(missing->points, [&](const Point& point) {
      return layer.activation->at(point.iteration).value_or(0) > 0;
    });
    if (static_cast<std::size_t>(was_used) < kMinMeasuredSteps) continue;
    place.tensor = TensorName::gradient;
    others[place.rank] += by_rank.contains(place.rank) ? 1 : 0;
    const Point& first = missing->points.front();
    by_rank[place.rank] = {
        .cause = "detached_layer",
        .place = place,
        .first = first.iteration,
        .last = missing->points.back().iteration,
        .confidence = kProbable,
        .summary =
            "the weight is in the optimizer, but the backward pass never computes a gradient for "
            "it",
        .evidence = {{"missing gradient", missing->place, first.iteration, first.value, ""},
                     {"root mean square", layer.activation->place, first.iteration,
                      layer.activation->at(first.iteration).value_or(0), "of its activation"}},
        .next_step =
            "check that the input of the layer requires a gradient: reentrant checkpointing needs "
            "model.enable_input_require_grads(), and detach() or torch.no_grad() cut the graph"};
  }
  std::vector<Finding> found;
  for (auto& [rank, finding] : by_rank) {
    finding.summary += and_others(others[rank], "layer");
    found.push_back(std::move(finding));
  }
  return found;
}

std::vector<Finding> find_detached_layer(const Facts& facts) {
  const std::vector<Series> activations = root_mean_squares(facts, TensorName::activation);
  const std::vector<Series> gradients = root_mean_squares(facts, TensorName::gradient);
  const std::vector<LayerUse> layers = list_layer_uses(facts, activations, gradients);
  std::map<int, std::vector<const LayerUse*>> by_rank;
  for (const LayerUse& each : layers) by_rank[each.activation->place.rank].push_back(&each);
  std::vector<Finding> found;
  for (const auto& [rank, layers_of_rank] : by_rank) {
    for (Finding& each : find_on_rank(facts, layers_of_rank, gradients))
      found.push_back(std::move(each));
  }
  return found.empty() ? find_missing_gradients(facts, layers) : found;
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
          "layers that pass a gradient on but have no weight gradient, and experts without tokens. "
          "Also reported in attached models: layers that are used and whose weight is in an "
          "optimizer, but that never have a gradient in its measured steps.",
      .stage = Stage::update,
      .required = {kSizes},
      .optional = {"numel", "mean", "missing", "accumulated_norm"},
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
