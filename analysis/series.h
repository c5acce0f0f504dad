// A series: the values of a statistic at one place, by iteration.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <tuple>
#include <vector>

#include "core/base/names.h"
#include "record/run_schema.h"

namespace telens::analysis {

// The rank of a value that was reduced over several.
inline constexpr int kAllRanks = -1;

// A tensor of a layer, or its copy for one GEMM. `layer` is the run reader's id.
struct Place {
  std::int32_t layer = record::kNoName;
  std::optional<TensorName> tensor = std::nullopt;
  std::optional<Gemm> gemm = std::nullopt;
  int rank = kAllRanks;

  friend bool operator==(const Place&, const Place&) = default;
};

// When a tensor occurs within an iteration: the forward pass visits the layers in the order of
// their ids, the backward pass in the reverse order.
using StepOrder = std::tuple<int, std::int32_t, int>;
StepOrder get_order_in_step(const Place& place);

struct Point {
  std::int64_t iteration = 0;
  double value = 0;
};

struct Series {
  Place place;
  std::int32_t statistic = record::kNoName;
  std::vector<Point> points = {};  // unique iterations in order, without warm-up
  double largest_in_warm_up = 0;   // infinity if NaN

  std::optional<double> at(std::int64_t iteration) const;
  // The last point before the iteration.
  const Point* before(std::int64_t iteration) const;
};

}  // namespace telens::analysis

namespace telens {
namespace diagnosis = analysis;
}  // namespace telens
