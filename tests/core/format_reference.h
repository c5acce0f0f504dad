// Slow and obvious implementations of the formats, in double precision, as a reference for
// core/formats.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include "core/formats/convert.h"

namespace telens::testing {

// The value of a code without its sign by the definition of a binary format. Codes of infinity and
// NaN are read as if they were finite.
template <typename Format>
double value_by_definition(std::uint32_t code) {
  const std::uint32_t mantissas = 1U << Format::kMantissaBits;
  const auto exponent = static_cast<int>(code / mantissas);
  const double mantissa = static_cast<double>(code % mantissas) / mantissas;
  if (exponent == 0) return std::ldexp(mantissa, 1 - Format::kBias);
  return std::ldexp(1.0 + mantissa, exponent - Format::kBias);
}

// Finds the code whose value is nearest to a number by searching all of them.
template <typename Format>
class NearestCode {
 public:
  NearestCode() {
    // The code after the format's largest one: a number that rounds to it is out of range.
    for (std::uint32_t code = 0; code <= Format::kMaxCode + 1U; ++code) {
      values_.push_back(value_by_definition<Format>(code));
    }
  }

  typename Format::Bits operator()(float number, Saturation saturation) const {
    using Bits = typename Format::Bits;
    const Bits sign = std::signbit(number) ? Format::kSignMask : Bits{0};
    if (std::isnan(number)) {
      return Format::kHasNan ? static_cast<Bits>(sign | Format::kNanCode) : Format::kMaxCode;
    }
    const std::uint32_t code = nearest(std::fabs(static_cast<double>(number)));
    if (code <= Format::kMaxCode) return static_cast<Bits>(sign | code);
    return static_cast<Bits>(
        sign | (saturation == Saturation::saturating ? Format::kMaxCode : Format::kOverflowCode));
  }

  double value(std::uint32_t code) const { return values_[code]; }

 private:
  std::uint32_t nearest(double magnitude) const {
    const auto above = std::upper_bound(values_.begin(), values_.end(), magnitude);
    if (above == values_.end()) return static_cast<std::uint32_t>(values_.size() - 1);
    const auto upper = static_cast<std::uint32_t>(above - values_.begin());
    const double up = values_[upper] - magnitude;
    const double down = magnitude - values_[upper - 1];
    if (up == down) return upper % 2 == 0 ? upper : upper - 1;
    return up < down ? upper : upper - 1;
  }

  std::vector<double> values_;
};

// FP32 values around every rounding decision of the format: each finite value, each tie between two
// neighbors, and the FP32 values up to two steps from them. Also every 65521st code of FP32 (a
// prime, so that all bits vary). All with both signs.
template <typename Format>
std::vector<float> numbers_around_every_decision() {
  std::vector<std::uint32_t> magnitudes;
  const auto add_around = [&](double value) {
    const auto bits = bits_as<std::uint32_t>(static_cast<float>(value));
    for (int step = -2; step <= 2; ++step) {
      const std::int64_t near = std::int64_t{bits} + step;
      if (near >= 0) magnitudes.push_back(static_cast<std::uint32_t>(near));
    }
  };
  for (std::uint32_t code = 0; code <= Format::kMaxCode; ++code) {
    const double value = value_by_definition<Format>(code);
    add_around(value);
    add_around((value + value_by_definition<Format>(code + 1)) / 2);
  }
  for (std::uint32_t bits = 0; bits <= FP32::kMagnitudeMask; bits += 65521) {
    magnitudes.push_back(bits);
  }
  std::vector<float> numbers;
  for (const std::uint32_t magnitude : magnitudes) {
    numbers.push_back(bits_as<float>(magnitude));
    numbers.push_back(bits_as<float>(magnitude | FP32::kSignMask));
  }
  return numbers;
}

}  // namespace telens::testing
