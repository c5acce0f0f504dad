#include "features/rank_agreement/rank_agreement.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/zeros_like.h>

#include <memory>
#include <optional>
#include <utility>

#include "core/base/fnv1a.h"
#include "core/quantization/autocast.h"
#include "core/quantization/quantized_tensor.h"
#include "hooks/engine/tensor_digest.h"
#include "hooks/running_iteration.h"

namespace telens::features {
namespace {

constexpr std::string_view kWeight = "weight";
constexpr std::string_view kScale = "scale";
constexpr std::string_view kHistory = "amax history";
constexpr std::string_view kReplica = "replica";

// Returns codes and values if a weight is stored in low precision.
const QuantizedData* get_data(const QuantizedTensor* tensor) {
  if (tensor == nullptr) return nullptr;
  return tensor->rowwise.defined() ? &tensor->rowwise : &tensor->columnwise;
}

const QuantizedTensor* get_codes(const InspectTensorCall& call) {
  const QuantizedTensor* first = quantized_or_null(call.rowwise);
  return first != nullptr ? first : quantized_or_null(call.columnwise);
}

// Returns the scale itself as its digest if it is a single FP32 number.
at::Tensor digest_of_scale(const at::Tensor& scale) {
  const at::NoGradGuard no_grad;
  if (scale.numel() != 1 || scale.scalar_type() != at::kFloat) return compute_digest(scale);
  const at::Tensor bits = scale.detach().reshape({}).view(at::kInt).to(at::kLong);
  return at::stack({bits, at::zeros_like(bits)});
}

// Each rank of tp_group has an activation or a gradient in whole, with the same bits unless a rank
// received different data. Returns an undefined tensor for other tensors.
at::Tensor digest_of_replica(const InspectTensorCall& call) {
  const auto& [group, size] = call.tensor_parallel;
  const bool is_replica = call.replicated && group != nullptr && size > 1;
  if (!is_replica || call.tensor_name == TensorName::weight || call.tensor == nullptr) return {};
  return compute_digest(*call.tensor);
}

std::uint64_t part_of_weight(const InspectTensorCall& call) {
  const auto& [group, size] = call.tensor_parallel;
  return group != nullptr && size > 1 ? select_part(rank_in(*group), size) : kWhole;
}

// Returns the group over which delayed scaling reduces amaxes; nullopt if this rank keeps its
// amaxes local.
std::optional<std::uint64_t> running_amax_group(const InspectTensorCall& call) {
  const AutocastState* autocast = current_autocast();
  if (call.delayed == nullptr || !call.delayed->reduce_amax || autocast == nullptr) {
    return std::nullopt;
  }
  const ProcessGroupPtr& group = autocast->options.group;
  if (!group || size_of(*group) < 2) return std::nullopt;
  return part_of_group(*group);
}

}  // namespace

RankAgreement::RankAgreement(const config::FeatureEntry& entry, FeatureServices& services)
    : ScheduledFeature(entry, {.inspect = true, .read_statistics = false}),
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
                                                          const InspectTensorCall& call) {
  if (call.delayed != nullptr && call.tensor_name != TensorName::gradient) {
    if (const auto group = running_amax_group(call)) {
      amax_groups_.insert_or_assign(std::string(at.layer_name), *group);
    } else {
      amax_groups_.erase(std::string(at.layer_name));
    }
  }
  const bool is_delayed = call.followed() != nullptr;
  if (is_delayed) {
    const auto known = amax_groups_.find(at.layer_name);
    if (known != amax_groups_.end()) return known->second;
  }
  if (call.tensor_name == TensorName::weight) return part_of_weight(call);
  if (is_delayed || call.quantizer == nullptr) return std::nullopt;
  if (const ProcessGroupPtr& group = call.quantizer->amax_reduction_group()) {
    return part_of_group(*group);
  }
  const bool is_whole = call.replicated && call.tensor_parallel.group != nullptr;
  if (is_whole) return part_of_group(*call.tensor_parallel.group);
  return std::nullopt;
}

void RankAgreement::inspect_tensor(const FeatureCall& at, const InspectTensorCall& call,
                                   TensorReading&) {
  if (call.evaluation) return;
  const bool is_weight = call.tensor_name == TensorName::weight;
  if (is_weight && !call.first_microbatch) return;
  const QuantizedData* codes = get_data(get_codes(call));
  at::Tensor weight;
  if (is_weight && call.tensor != nullptr) {
    weight = compute_digest(*call.tensor);
  } else if (is_weight && codes != nullptr) {
    weight = compute_digest(codes->codes);
  }
  at::Tensor replica = digest_of_replica(call);
  at::Tensor scale;
  if (codes != nullptr && codes->scale_inv.defined()) scale = digest_of_scale(codes->scale_inv);
  const std::lock_guard lock(mutex_);
  begin_iteration(at.iteration);
  const ItemName name{std::string(at.layer_name), std::string(telens::get_name(call.tensor_name)),
                      kWeight};
  if (weight.defined()) items_.add(name, part_of_weight(call), std::move(weight));
  if (replica.defined()) {
    const std::uint64_t ranks = part_of_group(*call.tensor_parallel.group);
    items_.add({name.layer, name.tensor, kReplica}, ranks, std::move(replica));
  }
  const auto part = part_of_scale(at, call);
  if (scale.defined() && part) {
    items_.add({name.layer, name.tensor, kScale}, *part, std::move(scale));
  }
}

void RankAgreement::look_at(const ModelTensor& tensor) {
  if (tensor.kind == ModelTensor::Kind::gradient) return;
  const bool is_history = tensor.kind == ModelTensor::Kind::amax_history;
  if (!is_history && selection(std::nullopt, TensorName::weight) == nullptr) return;
  at::Tensor digest = compute_digest(tensor.value);
  const std::lock_guard lock(mutex_);
  // A rank may not have a layer with anything to compare in this iteration.
  begin_iteration(running_iteration());
  if (!is_history) {
    const std::uint64_t part = tensor.part.empty() ? kWhole : fnv1a(tensor.part);
    items_.add({tensor.layer, tensor.tensor, kWeight}, part, std::move(digest));
    return;
  }
  const auto group = amax_groups_.find(tensor.layer);
  if (group == amax_groups_.end()) return;
  items_.add({tensor.layer, tensor.tensor, kHistory}, group->second, std::move(digest));
}

std::vector<std::int64_t> RankAgreement::get_words(std::int64_t iteration) {
  const std::lock_guard lock(mutex_);
  begin_iteration(iteration);
  return items_.words();
}

void RankAgreement::compare(std::int64_t iteration,
                            std::span<const std::vector<std::int64_t>> of_ranks) {
  const std::lock_guard lock(mutex_);
  report(items_, iteration, of_ranks, "RankAgreement", services_, told_);
  items_.clear();
}

FeatureRegistration rank_agreement() {
  return {rank_agreement_description(),
          [](const config::FeatureEntry& entry, FeatureServices& services) {
            return std::make_unique<RankAgreement>(entry, services);
          }};
}

}  // namespace telens::features
