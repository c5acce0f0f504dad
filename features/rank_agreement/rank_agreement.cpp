#include "features/rank_agreement/rank_agreement.h"

#include <fmt/format.h>

#include <bit>
#include <cstdint>
#include <limits>
#include <memory>
#include <optional>
#include <utility>

#include "core/base/fnv1a.h"
#include "core/base/text.h"
#include "features/builtin_features.h"
#include "hooks/observer.h"
#include "hooks/tensor_ops.h"

namespace telens::features {
namespace {

// " (1.5, on rank 0 0.75)": the scales that a rank and most other ranks multiply by.
std::string get_scales(const ComparedItems& items, const Difference& difference,
                       std::span<const RankWords> of_ranks) {
  if (items.name(difference.item).what != "scale") return "";
  const auto value = [&](int rank) {
    const std::int64_t word =
        items.first_word(difference.item, of_ranks[static_cast<std::size_t>(rank)]);
    const bool is_one_number = word >= std::numeric_limits<std::int32_t>::min() &&
                               word <= std::numeric_limits<std::int32_t>::max();
    return is_one_number
               ? fmt::format("{:.9g}", 1 / std::bit_cast<float>(static_cast<std::int32_t>(word)))
               : std::string();
  };
  const std::string odd = value(difference.odd.front());
  const std::string usual = value(difference.usual);
  if (odd.empty() || usual.empty()) return "";
  return fmt::format(" ({}, and {} there)", odd, usual);
}

// "scale of activation", "weight"; a replica is the tensor itself.
std::string get_subject(const ItemName& name) {
  if (name.what == "replica") return name.tensor;
  const bool is_of_tensor = name.what == "scale" || name.what == "amax history";
  return is_of_tensor ? fmt::format("{} of {}", name.what, name.tensor) : std::string(name.what);
}

}  // namespace

void report(const ComparedItems& items, std::int64_t iteration, std::span<const RankWords> of_ranks,
            std::string_view title, FeatureServices& services, std::set<std::string>& warned) {
  const int own = services.options().rank;
  std::vector<Compared> compared;
  const std::vector<Difference> differences = items.differences(of_ranks, own, compared);
  for (std::size_t i = 0; i < compared.size(); ++i) {
    if (!compared[i].has_peers) continue;
    const ItemName& name = items.name(i);
    services.record(
        {.iteration = iteration,
         .series = &services.series().find_or_add(
             {.layer = name.layer, .tensor = name.tensor, .statistic = differs_name(name.what)}),
         .value = compared[i].is_odd ? 1.0 : 0.0});
  }
  const Difference* first = nullptr;
  std::size_t others = 0;
  for (const Difference& each : differences) {
    const ItemName& name = items.name(each.item);
    if (!warned.insert(fmt::format("{} {} {}", name.layer, name.tensor, name.what)).second)
      continue;
    if (first == nullptr) {
      first = &each;
    } else {
      ++others;
    }
  }
  // A run of a thousand ranks reports it twice, not a thousand times.
  if (first == nullptr || (own != first->usual && own != first->odd.front())) return;
  const ItemName& name = items.name(first->item);
  const std::string subject = get_subject(name);
  services.announce(
      "ranks_differ",
      fmt::format("{}: iteration {}: {}: the {} differs on {} from rank {}'s{}{}", title, iteration,
                  name.layer, subject, describe_ranks(first->odd), first->usual,
                  get_scales(items, *first, of_ranks),
                  others == 0 ? "" : fmt::format("; {} more differ from here on", others)),
      name.layer);
}

namespace {

constexpr std::string_view kWeight = "weight";
constexpr std::string_view kScale = "scale";
constexpr std::string_view kHistory = "amax history";
constexpr std::string_view kReplica = "replica";

// Returns the codes of the first quantized operand; undefined codes if neither is quantized.
QuantizedCodes get_codes(const ObservedTensor& call) {
  const ObservedOperand& copy = call.rowwise.is_quantized() ? call.rowwise : call.columnwise;
  if (!copy.is_quantized()) return {};
  return copy.codes(/*columnwise=*/!copy.has(false));
}

// Each rank of the tensor-parallel group has an activation or a gradient in whole, with the same
// bits unless a rank received different data. Returns an undefined handle for other tensors.
TensorHandle digest_of_replica(const ObservedTensor& call) {
  const bool is_replica = call.replicated && call.parallel_group != nullptr;
  if (!is_replica || call.tensor_name == TensorName::weight || !call.tensor.defined()) return {};
  return tensor_ops::digest(call.tensor);
}

std::uint64_t part_of_weight(const ObservedTensor& call) {
  if (call.parallel_group == nullptr) return kWhole;
  return select_part(call.parallel_group->rank(), call.parallel_size);
}

// Returns the group over which delayed scaling reduces amaxes; nullopt if this rank keeps its
// amaxes local.
std::optional<std::uint64_t> running_amax_group(const ObservedTensor& call) {
  if (!call.delayed || !call.delayed->reduce_amax) return std::nullopt;
  const RankGroupPtr group = tensor_ops::running_amax_group();
  if (!has_several_ranks(group)) return std::nullopt;
  return part_of_group(*group);
}

}  // namespace

RankAgreement::RankAgreement(const config::FeatureEntry& entry, FeatureServices& services)
    : ScheduledObserver(entry, {.inspect = true, .read_statistics = false}),
      services_(services),
      options_(entry.selections.front().options_as<RankAgreementOptions>()) {}

// Items that arrived after the step() of their iteration may exist on only some ranks.
void RankAgreement::begin_iteration(std::int64_t iteration) {
  if (iteration == iteration_) return;
  iteration_ = iteration;
  items_.clear();
}

// Returns nullopt if each rank has a separate scale.
std::optional<std::uint64_t> RankAgreement::part_of_scale(const FeatureCall& at,
                                                          const ObservedTensor& call) {
  if (call.delayed && call.tensor_name != TensorName::gradient) {
    if (const auto group = running_amax_group(call)) {
      amax_groups_.insert_or_assign(std::string(at.layer_name), *group);
    } else {
      amax_groups_.erase(std::string(at.layer_name));
    }
  }
  const bool is_delayed = call.follows_delayed;
  if (is_delayed) {
    const auto known = amax_groups_.find(at.layer_name);
    if (known != amax_groups_.end()) return known->second;
  }
  if (call.tensor_name == TensorName::weight) return part_of_weight(call);
  if (is_delayed || !call.quantizer) return std::nullopt;
  if (const RankGroupPtr group = call.quantizer->amax_group()) return part_of_group(*group);
  if (call.replicated && call.parallel_group) return part_of_group(*call.parallel_group);
  return std::nullopt;
}

void RankAgreement::observe_tensor(const FeatureCall& at, const ObservedTensor& call,
                                   TensorReading&) {
  if (call.evaluation) return;
  const bool is_weight = call.tensor_name == TensorName::weight;
  if (is_weight && !call.first_microbatch) return;
  const QuantizedCodes codes = get_codes(call);
  TensorHandle weight;
  if (is_weight && call.tensor.defined()) {
    weight = tensor_ops::digest(call.tensor);
  } else if (is_weight && codes.defined()) {
    weight = tensor_ops::digest(codes.codes);
  }
  const TensorHandle replica = digest_of_replica(call);
  TensorHandle scale;
  if (codes.scale_inv.defined()) scale = tensor_ops::digest_of_scale(codes.scale_inv);
  const std::lock_guard lock(mutex_);
  begin_iteration(at.iteration);
  const ItemName name{std::string(at.layer_name), std::string(telens::get_name(call.tensor_name)),
                      kWeight};
  if (weight.defined()) items_.add(name, part_of_weight(call), weight);
  if (replica.defined()) {
    const std::uint64_t ranks = part_of_group(*call.parallel_group);
    items_.add({name.layer, name.tensor, kReplica}, ranks, replica);
  }
  const auto part = part_of_scale(at, call);
  if (scale.defined() && part) {
    items_.add({name.layer, name.tensor, kScale}, *part, scale);
  }
}

void RankAgreement::look_at(const ModelTensor& tensor) {
  if (tensor.kind == ModelTensor::Kind::gradient) return;
  const bool is_history = tensor.kind == ModelTensor::Kind::amax_history;
  if (!is_history && selection(std::nullopt, TensorName::weight) == nullptr) return;
  const TensorHandle digest = tensor_ops::digest(tensor.value);
  const std::lock_guard lock(mutex_);
  // A rank may not have a layer with anything to compare in this iteration.
  begin_iteration(running_iteration());
  if (!is_history) {
    const std::uint64_t part = tensor.part.empty() ? kWhole : fnv1a(tensor.part);
    items_.add({tensor.layer, tensor.tensor, kWeight}, part, digest);
    return;
  }
  const auto group = amax_groups_.find(tensor.layer);
  if (group == amax_groups_.end()) return;
  items_.add({tensor.layer, tensor.tensor, kHistory}, group->second, digest);
}

std::vector<std::int64_t> RankAgreement::get_words(std::int64_t iteration) {
  const std::lock_guard lock(mutex_);
  begin_iteration(iteration);
  return items_.words();
}

void RankAgreement::compare(std::int64_t iteration,
                            std::span<const std::vector<std::int64_t>> of_ranks) {
  const std::lock_guard lock(mutex_);
  report(items_, iteration, of_ranks, "RankAgreement", services_, warned_);
  items_.clear();
}

FeatureRegistration rank_agreement() {
  return {rank_agreement_description(),
          [](const config::FeatureEntry& entry, FeatureServices& services) {
            return std::make_unique<RankAgreement>(entry, services);
          }};
}

}  // namespace telens::features
