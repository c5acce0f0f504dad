#include "hooks/observer.h"

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

const config::Selection* ScheduledAnswers::selection(std::optional<Gemm> gemm,
                                                     std::optional<TensorName> tensor) const {
  const auto found = std::ranges::find_if(
      entry_.selections, [&](const auto& selection) { return matches(selection, gemm, tensor); });
  return found == entry_.selections.end() ? nullptr : &*found;
}

RoutingAnswer ScheduledAnswers::answer(bool makes_call, std::optional<Gemm> gemm,
                                       std::optional<TensorName> tensor, std::int64_t iteration,
                                       std::int64_t factor) const {
  RoutingAnswer answer = RoutingAnswer::never();
  if (!makes_call) return answer;
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

RoutingCalls ScheduledAnswers::routing_calls() const {
  return {.fp8_gemm = calls_.disable_fp8_gemm,
          .modify = calls_.modify,
          .inspect = calls_.inspect,
          .inspect_postquantize = calls_.inspect_postquantize,
          .inspect_gemm = calls_.inspect_gemm,
          .inspect_attention = calls_.inspect_attention};
}

bool ScheduledAnswers::may_watch_wgrad() const {
  return ((calls_.inspect || calls_.modify) && selection(Gemm::wgrad, TensorName::wgrad)) ||
         (calls_.inspect_gemm && calls_.look_at_products && selection(Gemm::wgrad, std::nullopt));
}

}  // namespace telens
