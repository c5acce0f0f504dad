// Comparison of tensors with references computed in double precision.
#pragma once

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <vector>

namespace telens::test {

// A leaf of the given dtype, and its FP64 copy, which is a leaf as well.
struct Leaf {
  at::Tensor tensor;
  at::Tensor reference;

  explicit Leaf(const at::Tensor& values)
      : tensor(values.detach().clone().set_requires_grad(values.is_floating_point())),
        reference(values.detach().to(at::kDouble).set_requires_grad(values.is_floating_point())) {}
};

// |actual - expected| <= relative * |expected| + absolute, for every element; NaN equals NaN.
inline testing::AssertionResult near(const at::Tensor& actual, const at::Tensor& expected,
                                     double relative, double absolute) {
  if (!actual.defined()) return testing::AssertionFailure() << "the tensor is undefined";
  if (actual.sizes() != expected.sizes()) {
    return testing::AssertionFailure()
           << "shape " << actual.sizes() << ", expected " << expected.sizes();
  }
  const at::Tensor got = actual.detach().to(at::kDouble).flatten();
  const at::Tensor want = expected.detach().to(at::kDouble).flatten();
  const at::Tensor close = at::isclose(got, want, relative, absolute, /*equal_nan=*/true);
  if (close.all().item<bool>()) return testing::AssertionSuccess();
  const std::int64_t first = close.logical_not().nonzero()[0].item<std::int64_t>();
  return testing::AssertionFailure()
         << "element " << first << " is " << got[first].item<double>() << ", expected "
         << want[first].item<double>() << "; " << close.logical_not().sum().item<std::int64_t>()
         << " of " << close.numel() << " differ";
}

}  // namespace telens::test
