#include "core/modules/layer/altered_operands.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <utility>
#include <vector>

#include "core/distributed/compare_ranks.h"

namespace telens {
namespace {

constexpr const char* kMend =
    "features must alter a sequence-parallel layer on all ranks of tp_group in the same "
    "iterations: run a debug session with one configuration on each of them";

// The tensor that the layer joins.
TensorName joined_tensor(const LinearParallel& parallel) {
  return parallel.gathers_input() ? TensorName::activation : TensorName::gradient;
}

std::string in_words(std::uint32_t modified, std::uint8_t high_precision, TensorName tensor) {
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

void AlteredOperands::compare(const ForwardContext& context, const std::string& layer,
                              const LinearParallel& parallel) {
  const TensorName tensor = joined_tensor(parallel);
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
  if (modified == modified_ && high_precision == high_precision_) return;
  compare_over_ranks({.subject = layer,
                      .group_name = "tp_group",
                      .text = in_words(modified, high_precision, tensor),
                      .mend = kMend},
                     parallel.group);
  modified_ = modified;
  high_precision_ = high_precision;
}

}  // namespace telens
