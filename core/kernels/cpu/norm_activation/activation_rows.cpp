#include "core/kernels/cpu/norm_activation/rows.h"

#include "core/kernels/cpu/element_type.h"
#include "core/ops/activation_formula.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "core/kernels/cpu/norm_activation/activation_rows.cpp"
#include <hwy/foreach_target.h>

#include "core/kernels/cpu/float_lanes-inl.h"
#include "hwy/contrib/math/math-inl.h"

HWY_BEFORE_NAMESPACE();
namespace telens::HWY_NAMESPACE {
namespace {

HWY_INLINE FloatVec constant(float value) { return hn::Set(kFloats, value); }

// exp(104) is already Inf. Highway's exp is undefined for larger values.
HWY_INLINE FloatVec sigmoid(FloatVec z) {
  const FloatVec exponent = hn::Min(hn::Neg(z), constant(104.0F));
  return hn::Div(constant(1), hn::Add(constant(1), hn::Exp(kFloats, exponent)));
}

// An element's function: its value, and its gradient for the incoming gradient `outer`.

// This form keeps all digits of a small s; 1 + tanh would not. A zero cubic term is skipped instead
// of multiplied: x^2 overflows for |x| >= 2^64, and 0 * Inf is NaN.
template <typename Coefficients>
struct SigmoidWeighted {
  static HWY_INLINE FloatVec argument(FloatVec x) {
    FloatVec factor = constant(Coefficients::kLinear);
    if constexpr (Coefficients::kCubic != 0) {
      factor = hn::MulAdd(constant(Coefficients::kCubic), hn::Mul(x, x), factor);
    }
    return hn::Mul(x, factor);
  }
  static HWY_INLINE FloatVec value(FloatVec x) { return hn::Mul(x, sigmoid(argument(x))); }
  static HWY_INLINE FloatVec gradient(FloatVec outer, FloatVec x) {
    const FloatVec s = sigmoid(argument(x));
    FloatVec slope = constant(Coefficients::kLinear);
    if constexpr (Coefficients::kCubic != 0) {
      const FloatVec square = hn::Min(hn::Mul(x, x), constant(ops::kLargestSquare));
      slope = hn::MulAdd(constant(3 * Coefficients::kCubic), square, slope);
    }
    const FloatVec bell = hn::Mul(s, hn::Sub(constant(1), s));
    return hn::Mul(outer, hn::MulAdd(hn::Mul(x, bell), slope, s));
  }
};

// Like torch's relu and its gradient. NaN propagates, since it is not below zero. If x is not
// positive the gradient is +0 for any incoming gradient: a product with zero would turn Inf into
// NaN.
struct Relu {
  static HWY_INLINE FloatVec value(FloatVec x) {
    return hn::IfThenElse(hn::Lt(x, constant(0)), constant(0), x);
  }
  static HWY_INLINE FloatVec gradient(FloatVec outer, FloatVec x) {
    return hn::IfThenZeroElse(hn::Le(x, constant(0)), outer);
  }
};

struct SquaredRelu {
  static HWY_INLINE FloatVec value(FloatVec x) {
    const FloatVec positive = Relu::value(x);
    return hn::Mul(positive, positive);
  }
  static HWY_INLINE FloatVec gradient(FloatVec outer, FloatVec x) {
    const FloatVec half = hn::Mul(outer, x);  // doubled last: 2 * x may overflow
    return Relu::gradient(hn::Add(half, half), x);
  }
};

template <typename Visitor>
void dispatch_function(ops::ActivationFunction function, const Visitor& visitor) {
  ops::dispatch_activation<SigmoidWeighted, Relu, SquaredRelu>(function, visitor);
}

template <typename Function, typename T>
void forward_elements(const ActivationRow& row, const T* x, T* y) {
  if (!row.gated) {
    map_lanes(row.length, y, [&](auto at) HWY_ATTR { return Function::value(at(x)); });
    return;
  }
  const T* gate = x + row.length;
  map_lanes(row.length, y,
            [&](auto at) HWY_ATTR { return hn::Mul(Function::value(at(x)), at(gate)); });
}

template <typename Function, typename T>
void backward_elements(const ActivationRow& row, const T* grad, const T* x, T* dx) {
  if (!row.gated) {
    map_lanes(row.length, dx,
              [&](auto at) HWY_ATTR { return Function::gradient(at(grad), at(x)); });
    return;
  }
  const T* gate = x + row.length;
  map_lanes(row.length, dx, [&](auto at) HWY_ATTR {
    return Function::gradient(hn::Mul(at(grad), at(gate)), at(x));
  });
  map_lanes(row.length, dx + row.length,
            [&](auto at) HWY_ATTR { return hn::Mul(at(grad), Function::value(at(x))); });
}

void forward(const ActivationRow& row, const void* x, void* y) {
  dispatch_element_type(row.format, [&]<typename T>() {
    dispatch_function(row.function, [&]<typename Function>() {
      forward_elements<Function>(row, static_cast<const T*>(x), static_cast<T*>(y));
    });
  });
}

void backward(const ActivationRow& row, const void* grad, const void* x, void* dx) {
  dispatch_element_type(row.format, [&]<typename T>() {
    dispatch_function(row.function, [&]<typename Function>() {
      backward_elements<Function>(row, static_cast<const T*>(grad), static_cast<const T*>(x),
                                  static_cast<T*>(dx));
    });
  });
}

}  // namespace
}  // namespace telens::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace telens {

HWY_EXPORT(forward);
HWY_EXPORT(backward);

void activate_row(const ActivationRow& row, const void* x, void* y) {
  HWY_DYNAMIC_DISPATCH(forward)(row, x, y);
}

void activate_row_backward(const ActivationRow& row, const void* grad, const void* x, void* dx) {
  HWY_DYNAMIC_DISPATCH(backward)(row, grad, x, dx);
}

}  // namespace telens
#endif  // HWY_ONCE
