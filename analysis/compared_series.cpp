#include "analysis/compared_series.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "analysis/sizes.h"
#include "core/base/names.h"

namespace telens::analysis {
namespace {

constexpr std::string_view kCastError = "error of the cast";

void add_sizes(std::vector<Quantity>& all, const Facts& facts) {
  for (const TensorName tensor : kAllTensors) {
    for (Series& series : root_mean_squares(facts, tensor)) {
      all.push_back({Compared::size, "root mean square", std::move(series)});
    }
  }
  if (!all.empty()) return;
  for (const Series* amax : facts.with("cur_amax")) {
    all.push_back({Compared::size, "cur_amax", *amax});
  }
}

Series cast_errors(const Facts& facts, const Series& mse) {
  Series errors{.place = mse.place};
  for (const auto& [iteration, value] : mse.points) {
    const auto size = root_mean_square(facts, mse.place, iteration);
    if (!size || !(*size > 0)) continue;
    errors.points.push_back({iteration, std::sqrt(std::max(0.0, value)) / *size});
  }
  return errors;
}

}  // namespace

std::vector<Quantity> list_quantities(const Facts& facts) {
  std::vector<Quantity> all;
  add_sizes(all, facts);
  for (const Series* mse : facts.with("mse")) {
    Series errors = cast_errors(facts, *mse);
    if (errors.points.empty()) continue;
    all.push_back({Compared::cast_error, kCastError, std::move(errors)});
  }
  for (const Series* error : facts.with("gemm_relative_error")) {
    all.push_back({Compared::product_error, "error of the product", *error});
  }
  return all;
}

std::vector<Quantity> errors_of_no_cast(const std::vector<Quantity>& sizes) {
  std::vector<Quantity> all;
  for (const Quantity& size : sizes) {
    const auto tensor = size.series.place.tensor;
    if (!tensor || !is_gemm_input(*tensor)) continue;
    Quantity none{Compared::cast_error, kCastError, size.series};
    for (Point& point : none.series.points) point.value = 0;
    for (const Gemm gemm : kAllGemms) {
      if (!belongs_to(*tensor, gemm)) continue;
      none.series.place.gemm = gemm;
      all.push_back(none);
    }
    none.series.place.gemm.reset();  // one cast for all
    all.push_back(std::move(none));
  }
  return all;
}

std::vector<std::string_view> compared_statistics() {
  return {"l2_norm",     "numel",    "std",
          "mean",        "cur_amax", "scale_inv_max",
          "underflows%", "mse",      "gemm_relative_error"};
}

}  // namespace telens::analysis
