// Matrices for tests of block-scaled formats.
#pragma once

#include <ATen/ATen.h>

#include "core/formats/bits.h"
#include "tests/core/special_values.h"

namespace telens::testing {

// Magnitudes over many powers of two, and zeros: some elements underflow in their blocks, and some
// blocks are all zeros.
inline at::Tensor wide_data(at::IntArrayRef sizes, at::ScalarType dtype) {
  const at::Tensor exponents = at::randn(sizes) * 5;
  at::Tensor x = at::randn(sizes) * exponents.exp2() * (at::rand(sizes) > 0.1);
  if (x.size(1) > 40) x.slice(1, 0, 40).slice(0, 0, 3).zero_();
  return x.to(dtype);
}

// FP32 [32, 64]: special values of both signs, so far apart that some blocks have only a few.
inline at::Tensor special_matrix() {
  at::Tensor x = at::zeros({32, 64});
  auto* const to = x.mutable_data_ptr<float>();
  std::int64_t i = 0;
  for (const testing::SpecialValue& value : testing::kSpecialValues) {
    const auto number = bits_as<float>(value.bits);
    for (const float signed_number : {number, -number}) to[i++ % x.numel()] = signed_number;
    i += 13;
  }
  return x;
}

}  // namespace telens::testing
