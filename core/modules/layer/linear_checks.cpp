#include "core/modules/layer/linear_checks.h"

#include <ATen/autocast_mode.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <vector>

#include "core/distributed/compare_ranks.h"
#include "core/modules/layer/overlap.h"

namespace telens {

void check_dtypes(const std::string& layer, const ActivationMeta& input, const at::Tensor& weight) {
  const at::ScalarType dtype = input.scalar_type();
  if (dtype != at::kBFloat16 && dtype != at::kHalf && dtype != at::kFloat && dtype != at::kDouble) {
    raise<ShapeError>("{}: activation has dtype {}; expected BFloat16, Half, Float or Double",
                      layer, c10::toString(dtype));
  }
  if (weight.scalar_type() != dtype && !at::autocast::is_autocast_enabled(input.device().type())) {
    raise<ShapeError>(
        "{}: activation has dtype {} and weight {}; outside autocast they must be the same; "
        "convert one, or use autocast",
        layer, c10::toString(dtype), c10::toString(weight.scalar_type()));
  }
}

void check_shapes(const std::string& layer, const ActivationMeta& input, const at::Tensor& weight) {
  if (input.sizes().empty() || input.sizes().back() != weight.size(1)) {
    raise<ShapeError>("{}: activation has shape {}; expected [..., {}]", layer,
                      c10::str(input.sizes()), weight.size(1));
  }
  if (input.device() != weight.device()) {
    raise<ShapeError>("{}: activation is on {} and weight on {}; move one of them", layer,
                      input.device().str(), weight.device().str());
  }
}

void check_fp8_shapes(const std::string& layer, const ForwardContext& context,
                      const ActivationMeta& input, const at::Tensor& weight) {
  if (input.scalar_type() == at::kDouble) {
    raise<ShapeError>("{}: activation has dtype Double; FP8 accepts BFloat16, Half or Float",
                      layer);
  }
  std::int64_t alignment = 1;  // a custom recipe may leave tensors in high precision
  for (const TensorRole role : {TensorRole::input, TensorRole::weight, TensorRole::grad_output}) {
    const Quantizer* quantizer = context.quantizer(role);
    if (quantizer != nullptr) alignment = std::max(alignment, quantizer->alignment());
  }
  if (weight.size(0) % alignment != 0 || weight.size(1) % alignment != 0) {
    raise<ShapeError>(
        "{}: weight has shape {}; FP8 GEMMs require both dimensions to be multiples of {}. Change "
        "the layer's features or run it outside fp8_autocast. In a converted model, pass the "
        "recipe, which excludes such layers: te.convert(model, recipe=recipe)",
        layer, c10::str(weight.sizes()), alignment);
  }
}

void check_tensor_parallel(const std::string& layer, const TensorParallel& tensor_parallel) {
  if (tensor_parallel.size > 1 && tensor_parallel.group == nullptr) [[unlikely]] {
    raise<UsageError>(
        "{}: tp_size is {}, but tp_group is missing; call set_tensor_parallel_group before the "
        "first forward, or pass tp_group to the module",
        layer, tensor_parallel.size);
  }
}

void check_sequence(const std::string& layer, const LinearParallel& parallel,
                    const ActivationMeta& input) {
  if (!parallel.is_divided() || !parallel.sequence) return;
  if (input.sizes().size() < 2) {
    raise<ShapeError>(
        "{}: activation has shape {}; sequence_parallel divides the first dimension of at least "
        "two",
        layer, c10::str(input.sizes()));
  }
  if (parallel.mode == ParallelMode::row && input.sizes()[0] % parallel.size != 0) {
    raise<ShapeError>(
        "{}: activation has shape {}; sequence_parallel scatters its first dimension to {} ranks, "
        "which must divide it",
        layer, c10::str(input.sizes()), parallel.size);
  }
}

// ---- checks over ranks

namespace {

RankClaim claim_forward(const std::string& layer, std::string text) {
  return {
      .subject = layer,
      .group_name = "tp_group",
      .text = std::move(text),
      .hint = "give all of its ranks the same layers and as many tokens, under the same autocast"};
}

// The tensor that the layer gathers.
TensorName gathered_tensor(const LinearParallel& parallel) {
  return parallel.gathers_input() ? TensorName::activation : TensorName::gradient;
}

std::string describe_modified(std::uint32_t modified, std::uint8_t high_precision,
                              TensorName tensor) {
  std::vector<std::string> parts;
  const auto [first, second] = get_gemms(tensor);
  for (const Gemm gemm : {first, second}) {
    if ((modified & RoutingPlan::get_bit(gemm, tensor)) != 0) {
      parts.push_back(fmt::format("modifies its {} for {}", get_name(tensor), get_name(gemm)));
    }
    if ((high_precision & RoutingPlan::get_bit(gemm)) != 0) {
      parts.push_back(fmt::format("runs {} in high precision", get_name(gemm)));
    }
  }
  return parts.empty() ? "alters nothing" : fmt::format("{}", fmt::join(parts, " and "));
}

}  // namespace

void ParallelChecks::check_shared_scales(const std::string& layer, const LinearParallel& parallel,
                                         const DelayedScaling& recipe,
                                         const ProcessGroupPtr& amax_group) {
  if (!parallel.is_divided() || !parallel.sequence) return;
  const bool reduces = recipe.reduce_amax && amax_group && size_of(*amax_group) >= parallel.size;
  if (!reduces) {
    raise<UsageError>(
        "{}: sequence_parallel joins FP8 codes of {} ranks, which delayed scaling must scale "
        "alike; give fp8_autocast an fp8_group with all ranks of tp_group, and the recipe "
        "reduce_amax=True",
        layer, parallel.size);
  }
  const std::string& tp_group = get_name(*parallel.group);
  const std::string& fp8_group = get_name(*amax_group);
  if (compared_groups_.first == tp_group && compared_groups_.second == fp8_group) return;
  compare_once_over_ranks(
      {.subject = layer,
       .group_name = "tp_group",
       .text = fmt::format("has the fp8_group '{}'", fp8_group),
       .hint = "sequence_parallel joins their FP8 codes, which delayed scaling must scale alike; "
               "give fp8_autocast one fp8_group that holds all ranks of tp_group"},
      parallel.group);
  compared_groups_ = {tp_group, fp8_group};
}

void ParallelChecks::compare_first_forward(const std::string& layer, const LinearParallel& parallel,
                                           const ForwardContext& context,
                                           const ActivationMeta& input) {
  if (!parallel.is_divided() || context.recomputation) return;
  if (std::exchange(compared_forward_, true)) return;
  const auto recipe = context.quantizes() ? fmt::format("under {}", context.recipe->name())
                                          : std::string("in high precision");
  compare_over_ranks(
      claim_forward(layer,
                    fmt::format("runs it {}-parallel {} sequence_parallel, {}, on {} {}",
                                parallel.mode == ParallelMode::row ? "row" : "column",
                                parallel.sequence ? "with" : "without", recipe,
                                c10::toString(input.scalar_type()), c10::str(input.sizes()))),
      parallel.group);
}

void ParallelChecks::report_rejected_forward(const std::string& layer,
                                             const LinearParallel& parallel, const char* reason) {
  if (!parallel.is_divided() || !parallel.group || std::exchange(compared_forward_, true)) return;
  report_error_to_ranks(claim_forward(layer, {}), reason, parallel.group);
}

void ParallelChecks::compare_operands(const std::string& layer, const LinearParallel& parallel,
                                      const ForwardContext& context) {
  if (context.recomputation) return;
  const TensorName tensor = gathered_tensor(parallel);
  std::uint32_t modified = 0;
  std::uint8_t high_precision = 0;
  if (context.plan) {
    const auto [first, second] = get_gemms(tensor);
    modified = context.plan->modify &
               (RoutingPlan::get_bit(first, tensor) | RoutingPlan::get_bit(second, tensor));
    const int gemms = RoutingPlan::get_bit(first) | RoutingPlan::get_bit(second);
    if (context.quantizes()) {
      high_precision = static_cast<std::uint8_t>(context.plan->high_precision & gemms);
    }
  }
  if (modified != modified_ || high_precision != high_precision_) {
    compare_over_ranks({.subject = layer,
                        .group_name = "tp_group",
                        .text = describe_modified(modified, high_precision, tensor),
                        .hint = "features must alter a sequence-parallel layer on all ranks of "
                                "tp_group in the same iterations: run a debug session with one "
                                "configuration on each of them"},
                       parallel.group);
    modified_ = modified;
    high_precision_ = high_precision;
  }
  if (parallel.overlap && !std::exchange(compared_overlap_, true)) {
    parallel.overlap->compare(layer, parallel.group);
  }
}

}  // namespace telens
