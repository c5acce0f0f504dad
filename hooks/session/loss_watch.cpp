#include "hooks/session/loss_watch.h"

#include <fmt/format.h>

#include <cmath>

namespace telens::debug {

std::optional<std::string> LossWatch::look_at(double loss, std::int64_t iteration) {
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

}  // namespace telens::debug
