#include "analysis/expected_error.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <numeric>
#include <optional>
#include <string_view>

namespace telens::analysis {
namespace {

struct FormatError {
  std::string_view name;
  double unit;  // 2^-(mantissa bits + 1)
};
constexpr std::array kFormats{FormatError{"E2M1", 0x1p-2}, FormatError{"E5M2", 0x1p-3},
                              FormatError{"E4M3", 0x1p-4}, FormatError{"BF16", 0x1p-8},
                              FormatError{"FP16", 0x1p-11}};
constexpr double kUnitOfE5m2 = 0x1p-3;
constexpr double kUnitOfBf16 = 0x1p-8;
constexpr double kUnitOfFp32 = 0x1p-24;

// One run, by layers.
struct Sizes {
  std::map<std::int32_t, double> units;
  std::map<std::int32_t, double> ks;
  double unit_elsewhere = kUnitOfBf16;  // for layers that `units` lacks
};

std::map<std::int32_t, double> units_of_gemms(const Facts& facts) {
  std::map<std::int32_t, double> units;
  for (const GemmState& state : facts.gemm_states()) {
    double& coarsest = units.try_emplace(state.place.layer, kUnitOfBf16).first->second;
    for (const auto& [entry, detail] : state.entries) {
      if (!entry.ends_with(" ran")) continue;
      for (const auto& [name, unit] : kFormats) {
        if (detail.starts_with(name)) coarsest = std::max(coarsest, unit);
      }
    }
  }
  return units;
}

// Inner dimension K of [M, K] x [K, N] -> [M, N], from the sizes MK, KN and MN; 0 if unknown.
double k_beside(const Facts& facts, const Series& weight) {
  if (weight.points.empty()) return 0;
  const auto& [iteration, elements] = weight.points.back();
  const auto size = [&](TensorName tensor) {
    Place place = weight.place;
    place.tensor = tensor;
    const Series* series = facts.find(place, "numel");
    return series != nullptr ? series->at(iteration).value_or(0) : 0;
  };
  const double output = size(TensorName::output);
  return output > 0 ? std::sqrt(size(TensorName::activation) * elements / output) : 0;
}

Sizes get_sizes(const Facts& facts) {
  Sizes sizes;
  sizes.units = units_of_gemms(facts);
  const bool casts = facts.has("scale_inv_max") || facts.has("underflows%") || facts.has("mse");
  for (const auto& [layer, unit] : sizes.units) {
    sizes.unit_elsewhere = std::max(sizes.unit_elsewhere, unit);
  }
  // If no GEMM recorded its precision, a cast may use any FP8 format.
  if (sizes.units.empty() && casts) sizes.unit_elsewhere = kUnitOfE5m2;
  for (const Series* each : facts.with("numel")) {
    if (each->place.tensor != TensorName::weight) continue;
    double& k = sizes.ks[each->place.layer];
    k = std::max(k, k_beside(facts, *each));
  }
  return sizes;
}

double at_or(const std::map<std::int32_t, double>& values, std::int32_t layer, double otherwise) {
  const auto found = values.find(layer);
  return found == values.end() ? otherwise : found->second;
}

double get_largest(const std::map<std::int32_t, double>& values) {
  double largest = 0;
  for (const auto& [layer, value] : values) largest = std::max(largest, value);
  return largest;
}

}  // namespace

ExpectedError::ExpectedError(const Facts& a, const Facts& b, const LayerInB& in_b) {
  const Sizes of_a = get_sizes(a);
  const Sizes of_b = get_sizes(b);
  const double largest_k = std::max(get_largest(of_a.ks), get_largest(of_b.ks));
  double sum = 0;
  for (std::size_t i = 0; i < a.layers(); ++i) {
    const auto layer = static_cast<std::int32_t>(i);
    const std::int32_t other = in_b(layer);
    const double k = std::max(at_or(of_a.ks, layer, 0), at_or(of_b.ks, other, 0));
    layers_.push_back({.unit = std::max(at_or(of_a.units, layer, of_a.unit_elsewhere),
                                        at_or(of_b.units, other, of_b.unit_elsewhere)),
                       .k = k > 0 ? k : largest_k});
    const double error = of_product(layer);
    forward_.push_back(sum += error * error);
  }
}

double ExpectedError::unit(std::int32_t layer) const {
  if (layers_.empty()) return kUnitOfBf16;
  return layers_[static_cast<std::size_t>(std::max(0, layer))].unit;
}

double ExpectedError::of_product(std::int32_t layer) const {
  if (layers_.empty()) return kUnitOfBf16;
  const Layer& of = layers_[static_cast<std::size_t>(std::max(0, layer))];
  return std::sqrt(2.0 / 3.0) * of.unit + of.k * kUnitOfFp32;
}

double ExpectedError::at(const Place& place) const {
  if (forward_.empty()) return kUnitOfBf16;
  const auto layer = static_cast<std::size_t>(std::max(0, place.layer));
  const bool backward = place.tensor && std::get<0>(get_order_in_step(place)) == 1;
  if (!backward) return std::sqrt(forward_[layer]);
  // All of the forward pass, and back to here.
  const double before = layer == 0 ? 0 : forward_[layer - 1];
  return std::sqrt(2 * forward_.back() - before);
}

}  // namespace telens::analysis
