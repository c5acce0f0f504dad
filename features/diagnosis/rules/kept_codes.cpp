#include "features/diagnosis/rules/kept_codes.h"

#include <algorithm>
#include <cstddef>

namespace telens::diagnosis {
namespace {

constexpr std::size_t kLeastCasts = 4;  // that show how often the weight is cast
constexpr std::int64_t kPauses = 2;     // a longer one than usual is no end

std::int64_t longest_pause(const Series& casts) {
  std::int64_t longest = 0;
  for (std::size_t i = 1; i < casts.points.size(); ++i) {
    longest = std::max(longest, casts.points[i].iteration - casts.points[i - 1].iteration);
  }
  return longest;
}

const Series* casts_of(const Facts& facts, Place place, TensorName tensor) {
  place.tensor = tensor;
  return facts.find(place, "mse");
}

}  // namespace

std::optional<std::int64_t> codes_kept_since(const Facts& facts, const Series& error) {
  if (error.place.gemm == Gemm::wgrad) return std::nullopt;
  const bool is_forward = error.place.gemm == Gemm::fprop;
  const Series* weight = casts_of(facts, error.place, TensorName::weight);
  const Series* other =
      casts_of(facts, error.place, is_forward ? TensorName::activation : TensorName::gradient);
  if (weight == nullptr || other == nullptr) return std::nullopt;
  if (weight->points.size() < kLeastCasts || other->points.empty()) return std::nullopt;
  const std::int64_t last = weight->points.back().iteration;
  if (other->points.back().iteration - last <= kPauses * longest_pause(*weight)) {
    return std::nullopt;
  }
  return std::ranges::upper_bound(other->points, last, {}, &Point::iteration)->iteration;
}

}  // namespace telens::diagnosis
