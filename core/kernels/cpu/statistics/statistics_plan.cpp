// The magnitudes at which the counters of a cast begin, computed once per scale from core/formats.
#include <cmath>

#include "core/formats/convert.h"
#include "core/formats/dispatch.h"
#include "core/kernels/cpu/statistics/statistics_ranges.h"

namespace telens::kernels {
namespace {

// Returns the smallest magnitude of Input, from `first` to infinity, for which the predicate holds;
// infinity + 1 if there is none. The predicate must be monotonic: true from some magnitude on.
template <typename Input, typename Predicate>
std::uint32_t first_magnitude(std::uint32_t first, const Predicate& holds) {
  std::uint32_t last = Input::kTopExponentCode + 1U;
  while (first < last) {
    const std::uint32_t middle = first + (last - first) / 2;
    if (holds(decode<Input>(static_cast<typename Input::Bits>(middle)))) {
      last = middle;
    } else {
      first = middle + 1;
    }
  }
  return first;
}

}  // namespace

CastPlan plan_cast(FormatId input, FormatId output, float scale) {
  CastPlan plan{output, scale, 1 / scale};
  // The sign of a scale moves to the codes and back and does not affect magnitudes.
  const float factor = std::fabs(scale);
  const float inverse = std::fabs(plan.scale_inv);
  dispatch_high_precision_format(input, "statistics", [&]<typename Input>() {
    dispatch_fp8_format(output, "statistics", [&]<typename Output>() {
      plan.first_nonzero = first_magnitude<Input>(
          1, [&](float x) { return encode<Output>(x * factor, Saturation::saturating) != 0; });
      plan.first_overflow =
          first_magnitude<Input>(1, [&](float x) { return x > Output::kMax * inverse; });
      plan.first_clipped = first_magnitude<Input>(1, [&](float x) {
        return encode<Output>(x * factor, Saturation::non_saturating) > Output::kMaxCode;
      });
    });
  });
  return plan;
}

}  // namespace telens::kernels
