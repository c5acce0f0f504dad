// The device code of activations, run on the host, for every value of BF16 and FP16 and the whole
// range of FP32, against torch in FP64.
#include <gtest/gtest.h>

#include "core/kernels/cuda/norm_activation/activation.cuh"
#include "tests/core/activation_reference.h"
#include "tests/core/cuda/host_grid.h"

namespace telens::testing {
namespace {

using cuda::BlockMaximum;

struct DeviceKernels {
  template <typename Format, typename Codes>
  void forward(ops::ActivationFunction function, bool gated, const Codes& x, Codes& y) const {
    const cuda::ActivationArguments arguments{.x = x.data(),
                                              .rows = 1,
                                              .width = static_cast<std::int64_t>(y.size()),
                                              .y = y.data(),
                                              .gated = gated,
                                              .scale = nullptr,
                                              .format = FormatId::e4m3,
                                              .amax = nullptr,
                                              .codes = nullptr};
    cuda::dispatch_activation(function, [&]<typename Function>() {
      run_grid<BlockMaximum>(4, Order::forward,
                             [&](const HostThread& thread, BlockMaximum& shared) {
                               cuda::activate<Format, Function, 1>(arguments, thread, shared);
                             });
    });
  }
  template <typename Format, typename Codes>
  void backward(ops::ActivationFunction function, bool gated, const Codes& grad, const Codes& x,
                Codes& dx) const {
    const cuda::ActivationGradientArguments arguments{
        .grad = grad.data(),
        .x = x.data(),
        .rows = 1,
        .width = static_cast<std::int64_t>(grad.size()),
        .gated = gated,
        .dx = dx.data()};
    cuda::dispatch_activation(function, [&]<typename Function>() {
      run_grid<BlockMaximum>(4, Order::forward, [&](const HostThread& thread, BlockMaximum&) {
        cuda::activate_backward<Format, Function, 1>(arguments, thread);
      });
    });
  }
};

// A GPU's approximations with the largest error that its manual allows, upward or downward.
template <int exp2_sign, int reciprocal_sign>
struct WorstApproximations {
  static float exp2(float x) {
    const double exact = std::exp2(static_cast<double>(x)) * (1 + exp2_sign * 0x1p-22);
    return flushed(exact);
  }
  static float reciprocal(float x) { return flushed((1 + reciprocal_sign * 0x1p-23) / x); }

 private:
  static float flushed(double value) { return value < 0x1p-126 ? 0.0F : static_cast<float>(value); }
};

template <typename Format, typename Function>
void expect_bound_of_fast_sigmoids(ops::ActivationFunction function) {
  const auto codes = every_code<Format>();
  at::Tensor leaf = doubles<Format>(codes).set_requires_grad(true);
  const at::Tensor values = torch_activation(function, leaf);
  const at::Tensor slopes = torch::autograd::grad({values.sum()}, {leaf})[0];
  const auto check = [&]<typename Worst>() {
    for (std::size_t i = 0; i < codes.size(); ++i) {
      const float x = decode<Format>(codes[i]);
      const double value = values.const_data_ptr<double>()[i];
      const double slope = slopes.const_data_ptr<double>()[i];
      if (!std::isfinite(value) || !std::isfinite(slope)) continue;
      using Fast = cuda::FastSigmoid<Worst>;
      // In addition to the sigmoid's error of 2^-17, its argument and the product are rounded. 1 -
      // s and its factor may cancel s.
      const double kValue = 0x1.2p-17 * (function == ops::ActivationFunction::gelu ? 4 : 2);
      const double near = std::fabs(Function::template value<Fast>(x) - value);
      ASSERT_LE(near, kValue * std::fabs(value) + 0x1p-121) << x;
      ASSERT_LE(std::fabs(Function::template gradient<Fast>(1.0F, x) - slope),
                kValue * std::fabs(slope) + 0x1p-18)
          << x;
    }
  };
  check.template operator()<WorstApproximations<1, 1>>();
  check.template operator()<WorstApproximations<1, -1>>();
  check.template operator()<WorstApproximations<-1, 1>>();
  check.template operator()<WorstApproximations<-1, -1>>();
}

TEST(ActivationDeviceRange, approximation_errors_stay_below_16_bit_rounding) {
  for (const ops::ActivationFunction function :
       {ops::ActivationFunction::gelu, ops::ActivationFunction::qgelu,
        ops::ActivationFunction::silu}) {
    SCOPED_TRACE(static_cast<int>(function));
    cuda::dispatch_activation(function, [&]<typename Function>() {
      expect_bound_of_fast_sigmoids<BF16, Function>(function);
      expect_bound_of_fast_sigmoids<FP16, Function>(function);
    });
  }
}

TEST(ActivationDeviceRange, every_value_matches_torch_in_double_precision) {
  for (const ops::ActivationFunction function : kActivationFunctions) {
    SCOPED_TRACE(static_cast<int>(function));
    expect_torch_over_the_range<BF16>(function, DeviceKernels());
    expect_torch_over_the_range<FP16>(function, DeviceKernels());
    expect_torch_over_the_range<FP32>(function, DeviceKernels());
  }
}

}  // namespace
}  // namespace telens::testing
