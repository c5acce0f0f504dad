#include "hooks/scheduled_feature.h"

#include <algorithm>

namespace telens {
namespace {

// Pairs that never occur together, such as activation and dgrad, are legal in a configuration and
// have no effect.
bool meets(const config::Selection& selection, Gemm gemm) {
  if (!selection.tensor) return true;
  const std::optional<TensorName> tensor = tensor_from_name(*selection.tensor);
  return tensor && belongs_to(*tensor, gemm);
}

bool matches(const config::Selection& selection, std::optional<Gemm> gemm,
             std::optional<TensorName> tensor) {
  if (gemm && ((selection.gemm && *selection.gemm != *gemm) || !meets(selection, *gemm))) {
    return false;
  }
  // If only GEMMs are selected, all of their tensors are selected.
  if (tensor && selection.gemm && !belongs_to(*tensor, *selection.gemm)) return false;
  return !tensor || !selection.tensor || *selection.tensor == get_name(*tensor);
}

}  // namespace

const config::Selection* ScheduledFeature::selection(std::optional<Gemm> gemm,
                                                     std::optional<TensorName> tensor) const {
  const auto found = std::ranges::find_if(
      entry_.selections, [&](const auto& selection) { return matches(selection, gemm, tensor); });
  return found == entry_.selections.end() ? nullptr : &*found;
}

RoutingAnswer ScheduledFeature::answer(bool does, std::optional<Gemm> gemm,
                                       std::optional<TensorName> tensor,
                                       std::int64_t iteration) const {
  RoutingAnswer answer = RoutingAnswer::never();
  if (!does) return answer;
  const std::int64_t factor = thinning_factor();
  for (const config::Selection& selection : entry_.selections) {
    if (!matches(selection, gemm, tensor)) continue;
    answer.enabled |= selection.schedule.due(iteration, factor);
    answer.for_ever |= selection.schedule.always_due_from(iteration, factor);
    const std::optional<std::int64_t> next = selection.schedule.next_due_after(iteration, factor);
    if (next && (!answer.next_iteration || *next < *answer.next_iteration)) {
      answer.next_iteration = next;
    }
  }
  return answer;
}

RoutingCalls ScheduledFeature::routing_calls() const {
  return {.fp8_gemm = does_.disable_fp8_gemm,
          .modify = does_.modify,
          .inspect = does_.inspect,
          .inspect_postquantize = does_.inspect_postquantize,
          .inspect_gemm = does_.inspect_gemm,
          .inspect_attention = does_.inspect_attention};
}

bool ScheduledFeature::reads_statistics(TensorName tensor, std::int64_t iteration) const {
  return answer(does_.inspect && does_.read_statistics, std::nullopt, tensor, iteration).enabled;
}

bool ScheduledFeature::may_watch_wgrad() const {
  return ((does_.inspect || does_.modify) && selection(Gemm::wgrad, TensorName::wgrad)) ||
         (does_.inspect_gemm && does_.look_at_products && selection(Gemm::wgrad, std::nullopt));
}

// A False holds until its next_iteration, so while a switch is off, ask again in the next
// iteration.
RoutingAnswer ScheduledFeature::fp8_gemm_enabled(const FeatureCall& at, Gemm gemm) {
  const RoutingAnswer off = answer(does_.disable_fp8_gemm, gemm, std::nullopt, at.iteration);
  if (!off.enabled) return {true, off.next_iteration};
  return {false, at.iteration + 1, off.for_ever};
}

RoutingAnswer ScheduledFeature::modify_tensor_enabled(const FeatureCall& at, Gemm gemm,
                                                      TensorName tensor) {
  return answer(does_.modify, gemm, tensor, at.iteration);
}

RoutingAnswer ScheduledFeature::inspect_tensor_enabled(const FeatureCall& at, TensorName tensor) {
  return answer(does_.inspect, std::nullopt, tensor, at.iteration);
}

RoutingAnswer ScheduledFeature::inspect_tensor_postquantize_enabled(const FeatureCall& at,
                                                                    Gemm gemm, TensorName tensor) {
  return answer(does_.inspect_postquantize, gemm, tensor, at.iteration);
}

RoutingAnswer ScheduledFeature::inspect_gemm_enabled(const FeatureCall& at, Gemm gemm) {
  return answer(does_.inspect_gemm, gemm, std::nullopt, at.iteration);
}

RoutingAnswer ScheduledFeature::inspect_attention_enabled(const FeatureCall& at) {
  return answer(does_.inspect_attention, std::nullopt, std::nullopt, at.iteration);
}

}  // namespace telens
