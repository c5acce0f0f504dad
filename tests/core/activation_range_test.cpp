// The CPU's activations over every value of BF16 and FP16 and the whole range of FP32, against
// torch in FP64.
#include <gtest/gtest.h>

#include "core/kernels/cpu/norm_activation/rows.h"
#include "tests/core/activation_reference.h"

namespace telens::testing {
namespace {

struct CpuKernels {
  template <typename Format, typename Codes>
  void forward(ops::ActivationFunction function, bool gated, const Codes& x, Codes& y) const {
    const auto length = static_cast<std::int64_t>(y.size());
    activate_row({function, gated, Format::kId, length}, x.data(), y.data());
  }
  template <typename Format, typename Codes>
  void backward(ops::ActivationFunction function, bool gated, const Codes& grad, const Codes& x,
                Codes& dx) const {
    const auto length = static_cast<std::int64_t>(grad.size());
    activate_row_backward({function, gated, Format::kId, length}, grad.data(), x.data(), dx.data());
  }
};

TEST(ActivationRange, every_value_matches_torch_in_double_precision) {
  for (const ops::ActivationFunction function : kActivationFunctions) {
    SCOPED_TRACE(static_cast<int>(function));
    expect_torch_over_the_range<BF16>(function, CpuKernels());
    expect_torch_over_the_range<FP16>(function, CpuKernels());
    expect_torch_over_the_range<FP32>(function, CpuKernels());
  }
}

}  // namespace
}  // namespace telens::testing
