#include "hooks/session/loss_watch.h"

#include <fmt/format.h>

#include <cmath>

namespace telens::debug {

std::optional<std::string> LossWatch::look_at(double loss, std::int64_t iteration) {
  const std::lock_guard lock(mutex_);
  const bool was_finite = std::exchange(is_finite_, std::isfinite(loss));
  if (is_finite_) {
    finite_ = {loss, iteration};
    return std::nullopt;
  }
  if (!was_finite) return std::nullopt;
  const std::string before = finite_ ? fmt::format("the last finite one was {:.6g} in iteration {}",
                                                   finite_->first, finite_->second)
                                     : std::string("no loss before it was finite");
  return fmt::format(
      "the loss is {} in iteration {}; {}. configs/nan_hunt.yaml, from the last checkpoint on, "
      "names the layer that it comes from",
      std::isnan(loss) ? "NaN"
      : loss > 0       ? "infinite"
                       : "-infinite",
      iteration, before);
}

void LossWatch::note_recorded(double loss, std::int64_t iteration) {
  const std::lock_guard lock(mutex_);
  recorded_ = {loss, iteration};
}

// An iteration with a loss from record() does not get a second one: readers of the run would mix
// them.
LossWatch::StepLoss LossWatch::take_of_step(double loss, std::int64_t iteration) {
  const std::lock_guard lock(mutex_);
  const auto recorded = std::exchange(recorded_, std::nullopt);
  if (!recorded || recorded->second != iteration) return {.is_kept = true, .warning_of_other = {}};
  const bool same = recorded->first == loss || (std::isnan(recorded->first) && std::isnan(loss));
  StepLoss left_out{.is_kept = false, .warning_of_other = {}};
  if (!same && !std::exchange(told_of_two_, true)) {
    left_out.warning_of_other = fmt::format(
        "iteration {} has two losses: {} by debug.record(\"loss\", ...), which the run keeps, and "
        "{} by debug.step(loss=...), which it leaves out, here and later; give the loss to step "
        "alone, and record other numbers under other names",
        iteration, recorded->first, loss);
  }
  return left_out;
}

}  // namespace telens::debug
