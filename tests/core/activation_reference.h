// Activations and their gradients as torch computes them in FP64, over every value of a format. The
// tests of every backend use them.
#pragma once

#include <ATen/ATen.h>
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "core/ops/activation_formula.h"
#include "tests/core/special_values.h"

namespace telens::testing {

inline constexpr ops::ActivationFunction kActivationFunctions[] = {
    ops::ActivationFunction::gelu, ops::ActivationFunction::qgelu, ops::ActivationFunction::relu,
    ops::ActivationFunction::srelu, ops::ActivationFunction::silu};

// GELU's tanh approximation as x * sigmoid(2u), which is the same function: where torch's 1 +
// tanh(u) is small, it has no correct digits left, even in FP64.
inline at::Tensor torch_activation(ops::ActivationFunction function, const at::Tensor& x) {
  switch (function) {
    case ops::ActivationFunction::gelu:
      return x * (std::sqrt(8 / std::acos(-1.0)) * (x + 0.044715 * x * x * x)).sigmoid();
    case ops::ActivationFunction::qgelu:
      return x * (1.702 * x).sigmoid();
    case ops::ActivationFunction::relu:
      return at::relu(x);
    case ops::ActivationFunction::srelu:
      return at::relu(x).square();
    case ops::ActivationFunction::silu:
      break;
  }
  return at::silu(x);
}

// All codes of a 16-bit format. For FP32: the special values, and eight values between neighboring
// powers of two.
template <typename Format>
std::vector<typename Format::Bits> every_code() {
  std::vector<typename Format::Bits> codes;
  if constexpr (Format::kWidth == 16) {
    for (std::uint32_t code = 0; code < 1U << 16; ++code) {
      codes.push_back(static_cast<std::uint16_t>(code));
    }
  } else {
    for (const auto& special : special_codes<Format>()) codes.push_back(special.code);
    for (std::uint64_t code = 0; code < std::uint64_t{1} << 32; code += std::uint64_t{1} << 20) {
      codes.push_back(static_cast<std::uint32_t>(code) | 0x5a5a5U);
    }
  }
  return codes;
}

// Bounds of the difference between a stored result and FP64's: one unit in the last place, and the
// error of the exponential. FP32 rounds the sigmoid's argument, whose magnitude is at most 88,
// which changes the exponential by up to 88 * 3 * 2^-24 of itself. For arguments below -88.7,
// exp(-z) is infinite in FP32 and the sigmoid is 0; there |x * sigmoid(x)| is at most 88.8 * 2^-128
// < 2^-121.
template <typename Format>
struct ActivationTolerance {
  static constexpr double kRelative = 88 * 3 * 0x1p-24 + 2.0 / (1 << Format::kMantissaBits);
  static constexpr double kOfValue = 0x1p-121;
  // A gradient is a sum of terms that cancel around its zero near x = -1; each has an error of a
  // few units.
  static constexpr double kOfGradient = 0x1p-18;
};

// Expects NaN where torch has NaN, the same infinities, and elsewhere a value within the tolerance.
template <typename Format>
void expect_near_torch(const std::vector<typename Format::Bits>& actual, const at::Tensor& expected,
                       double absolute, const std::string& what,
                       const std::vector<typename Format::Bits>& x) {
  const at::Tensor contiguous = expected.contiguous();
  const auto* want = contiguous.const_data_ptr<double>();
  for (std::size_t i = 0; i < actual.size(); ++i) {
    const double e =
        decode<Format>(encode<Format>(static_cast<float>(want[i]), Saturation::non_saturating));
    const double a = decode<Format>(actual[i]);
    if (a == e || (std::isnan(a) && std::isnan(e))) continue;
    const double allowed = ActivationTolerance<Format>::kRelative * std::fabs(e) + absolute +
                           Format::kSmallestSubnormal;
    ASSERT_TRUE(std::isfinite(e) && std::fabs(a - e) <= allowed)
        << fmt::format("{} in {} is {:g}, expected {:g}, where x is {:g}", what,
                       get_name(Format::kId), a, want[i], decode<Format>(x[i]));
  }
}

// Factors of results and gradients. An infinite factor times a sigmoid is NaN only if the sigmoid
// is exactly zero, which depends on the precision. So only ReLU and SReLU get infinite factors.
inline std::vector<float> get_multipliers(ops::ActivationFunction function) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const float infinity = std::numeric_limits<float>::infinity();
  const bool piecewise =
      function == ops::ActivationFunction::relu || function == ops::ActivationFunction::srelu;
  return piecewise ? std::vector<float>{1, -2.5F, 0, nan, infinity, -infinity}
                   : std::vector<float>{1, -2.5F, 0, nan};
}

template <typename Format>
at::Tensor doubles(const std::vector<typename Format::Bits>& codes) {
  at::Tensor values = at::empty({static_cast<std::int64_t>(codes.size())}, at::kDouble);
  for (std::size_t i = 0; i < codes.size(); ++i) {
    values.mutable_data_ptr<double>()[i] = decode<Format>(codes[i]);
  }
  return values;
}

// Compares a backend with torch over all values of a format: plain and gated, forward and backward.
// kernels.forward(function, gated, x, y) and kernels.backward(function, gated, grad, x, dx) take
// vectors of codes, one row each.
template <typename Format, typename Kernels>
void expect_torch_over_the_range(ops::ActivationFunction function, const Kernels& kernels) {
  using Codes = std::vector<typename Format::Bits>;
  using Tolerance = ActivationTolerance<Format>;
  const Codes x = every_code<Format>();
  const std::size_t n = x.size();
  at::Tensor leaf = doubles<Format>(x).set_requires_grad(true);
  const at::Tensor value = torch_activation(function, leaf);
  const auto rounded = [](const at::Tensor& values) {
    return values.detach().to(at::kFloat).to(at::kDouble);
  };

  Codes y(n);
  kernels.template forward<Format>(function, false, x, y);
  expect_near_torch<Format>(y, value.detach(), Tolerance::kOfValue, "the value", x);

  for (const float multiplier : get_multipliers(function)) {
    const Codes grad(n, encode<Format>(multiplier, Saturation::non_saturating));
    const double size = std::isfinite(multiplier) ? std::fabs(multiplier) : 1;
    const at::Tensor outer = at::full_like(value.detach(), multiplier);
    const auto gradient_for = [&](const at::Tensor& of_value) {
      return torch::autograd::grad({value}, {leaf}, {of_value}, /*retain_graph=*/true)[0];
    };
    Codes dx(n);
    kernels.template backward<Format>(function, false, grad, x, dx);
    expect_near_torch<Format>(dx, gradient_for(outer), size * Tolerance::kOfGradient,
                              fmt::format("the gradient for {}", multiplier), x);

    // Gated: the multiplier is the factor of the activation. The gradient of that factor is checked
    // with a gradient of 2 (`twice`).
    Codes gated = x;
    gated.insert(gated.end(), grad.begin(), grad.end());
    kernels.template forward<Format>(function, true, gated, y);
    expect_near_torch<Format>(y, rounded(value) * outer, size * Tolerance::kOfValue,
                              fmt::format("the value times {}", multiplier), x);
    const Codes twice(n, encode<Format>(2.0F, Saturation::non_saturating));
    Codes both(2 * n);
    kernels.template backward<Format>(function, true, twice, gated, both);
    const Codes of_factors(both.begin() + static_cast<std::ptrdiff_t>(n), both.end());
    both.resize(n);
    expect_near_torch<Format>(both, gradient_for(2 * outer), 2 * size * Tolerance::kOfGradient,
                              fmt::format("the gradient for 2 * {}", multiplier), x);
    expect_near_torch<Format>(of_factors, 2 * rounded(value), 2 * Tolerance::kOfValue,
                              "the gradient of the factor", x);
  }
}

}  // namespace telens::testing
