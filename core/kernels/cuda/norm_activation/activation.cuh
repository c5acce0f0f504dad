// Device code. Activation functions, plain and gated, and their gradients. Arithmetic is FP32, and
// stored values are rounded once. Values that are rounded to 16 bits may be computed with
// approximations. A fused quantization encodes the rounded values, so its codes equal those of the
// activation followed by quantize.
#pragma once

#include <type_traits>

#include "core/kernels/cuda/approximations.cuh"
#include "core/kernels/cuda/quantize/quantize.cuh"
#include "core/ops/activation_formula.h"

namespace telens::cuda {

// A plain activation is one row. A gated one has rows of 2 * width: the first half is activated and
// multiplied by the second half.
struct ActivationArguments {
  const void* x;
  std::int64_t rows;
  std::int64_t width;  // width of the result
  void* y;             // [rows, width]; nullptr if not requested
  bool gated;
  const float* scale;   // scale of the codes; not read if codes is nullptr
  FormatId format;      // format of the codes: e4m3 or e5m2
  float* amax;          // becomes max(amax, max |y|); nullptr if not requested
  std::uint8_t* codes;  // [rows, width]; nullptr if not requested
};

struct ActivationGradientArguments {
  const void* grad;  // [rows, width]
  const void* x;
  std::int64_t rows;
  std::int64_t width;
  bool gated;
  void* dx;  // shape of x
};

// Computes a sigmoid s and its derivative s * (1 - s).
struct SigmoidAndBell {
  float sigmoid;
  float bell;
};

struct ExactSigmoid {
  static TELENS_DEVICE SigmoidAndBell of(float z) {
    const float s = 1.0F / (1.0F + std::exp(-z));
    return {s, s * (1.0F - s)};
  }
};

// (1 / (1 / 4 + 2^y / 4)) / 4 with y = -z * log2(e). The factors of 4 give both approximations the
// range of FP32 and ExactSigmoid, down to e^-z = 2^128. |y| is at most 128 there. It is rounded by
// a relative 2^-24 and computed with a log2(e) whose relative error is 2^-26. 2^y turns this into a
// relative error of |z| * 1.25 * 2^-24, at most 2^-17.2. The approximations add 2^-22 + 2^-23, the
// addition 2^-24. So the relative error is below 2^-17, while BF16 rounds at 2^-9 and FP16 at
// 2^-12.
//
// 1 - s is computed as 2^y * s: the difference would amplify the error of an s near 1, which a
// large x multiplies. The power is bounded because Inf * 0 is NaN.
template <typename Functions>
struct FastSigmoid {
  static TELENS_DEVICE SigmoidAndBell of(float z) {
    constexpr float kLog2OfE = 1.4426950408889634F;
    constexpr float kLargestPower = 0x1p127F;
    const float power = Functions::exp2(multiply_add(z, -kLog2OfE, -2.0F));  // 2^y / 4
    const float reciprocal = Functions::reciprocal(0.25F + power);
    const float s = 0.25F * reciprocal;
    const float bounded = power < kLargestPower ? power : kLargestPower;
    return {s, s * (bounded * reciprocal)};
  }
};

template <typename Format>
using SigmoidFor =
    std::conditional_t<Format::kWidth == 16, FastSigmoid<Approximations>, ExactSigmoid>;

// A function of an element: its value, and its gradient for the incoming gradient `outer`, with the
// given sigmoid.

// A zero cubic term is skipped instead of multiplied: x^2 overflows for |x| >= 2^64, and 0 * Inf is
// NaN.
template <typename Coefficients>
struct SigmoidWeighted {
  static TELENS_DEVICE float argument(float x) {
    if constexpr (Coefficients::kCubic == 0) {
      return x * Coefficients::kLinear;
    } else {
      return x * (Coefficients::kCubic * (x * x) + Coefficients::kLinear);
    }
  }
  template <typename Sigmoid>
  static TELENS_DEVICE float value(float x) {
    return x * Sigmoid::of(argument(x)).sigmoid;
  }
  template <typename Sigmoid>
  static TELENS_DEVICE float gradient(float outer, float x) {
    const SigmoidAndBell s = Sigmoid::of(argument(x));
    float slope = Coefficients::kLinear;
    if constexpr (Coefficients::kCubic != 0) {
      const float square = x * x < ops::kLargestSquare ? x * x : ops::kLargestSquare;
      slope = 3 * Coefficients::kCubic * square + Coefficients::kLinear;
    }
    return outer * (x * s.bell * slope + s.sigmoid);
  }
};

// Like torch's relu and its gradient. NaN propagates, since it is not below zero. If x is not
// positive the gradient is +0 for any incoming gradient: a product with zero would turn Inf into
// NaN.
struct Relu {
  static TELENS_DEVICE float positive(float x) { return x < 0.0F ? 0.0F : x; }
  static TELENS_DEVICE float where_positive(float outer, float x) {
    return x <= 0.0F ? 0.0F : outer;
  }
  template <typename>
  static TELENS_DEVICE float value(float x) {
    return positive(x);
  }
  template <typename>
  static TELENS_DEVICE float gradient(float outer, float x) {
    return where_positive(outer, x);
  }
};

struct SquaredRelu {
  template <typename>
  static TELENS_DEVICE float value(float x) {
    return Relu::positive(x) * Relu::positive(x);
  }
  template <typename>
  static TELENS_DEVICE float gradient(float outer, float x) {
    return Relu::where_positive(2 * (outer * x), x);  // this order: 2 * x may overflow
  }
};

// Calls visitor.operator()<Function>().
template <typename Visitor>
decltype(auto) dispatch_activation(ops::ActivationFunction function, Visitor&& visitor) {
  return ops::dispatch_activation<SigmoidWeighted, Relu, SquaredRelu>(function, visitor);
}

// Offsets of the inputs of the results [row, column ...]: the activated input and the factor.
struct ActivationPlace {
  std::int64_t activated;
  std::int64_t factor;

  static TELENS_DEVICE ActivationPlace of(std::int64_t row, std::int64_t column, std::int64_t width,
                                          bool gated) {
    const std::int64_t start = row * (gated ? 2 * width : width) + column;
    return {start, start + width};
  }
};

// A thread's iteration over its packs, in rows of `width`. Row numbers are computed by additions: a
// 64-bit division takes as long as a pack.
struct PackOfRow {
  std::int64_t row;
  std::int64_t column;
};

template <int pack_width>
class PacksOfRows {
 public:
  template <typename Thread>
  TELENS_DEVICE PacksOfRows(const Thread& thread, std::int64_t width) : width_(width) {
    const std::int64_t first = (thread.block() * kThreads + thread.index()) * pack_width;
    const std::int64_t step = thread.blocks() * kThreads * pack_width;
    step_ = {step / width, step % width};
    first_ = {first / width, first % width};
  }

  TELENS_DEVICE PackOfRow first() const { return first_; }
  TELENS_DEVICE PackOfRow after(PackOfRow pack) const {
    pack.row += step_.row;
    pack.column += step_.column;
    if (pack.column >= width_) {
      pack.column -= width_;
      ++pack.row;
    }
    return pack;
  }

 private:
  std::int64_t width_;
  PackOfRow step_;
  PackOfRow first_;
};

// The inputs of a result. Factors are loaded before anything is computed.
template <typename Format, int size>
struct ActivationInputs {
  using Elements = Words<typename Format::Bits, size>;
  Elements activated;
  Elements factors;  // of a gated activation

  static TELENS_DEVICE ActivationInputs at(const ActivationArguments& arguments,
                                           const PackOfRow& pack) {
    const auto* x = static_cast<const typename Format::Bits*>(arguments.x);
    const auto place = ActivationPlace::of(pack.row, pack.column, arguments.width, arguments.gated);
    ActivationInputs inputs{load_words<size>(x + place.activated), {}};
    if (arguments.gated) inputs.factors = load_words<size>(x + place.factor);
    return inputs;
  }

  // Returns the rounded results.
  template <typename Function>
  TELENS_DEVICE Elements apply(bool gated) const {
    float values[size];
    TELENS_UNROLL
    for (int j = 0; j < size; ++j) {
      values[j] = Function::template value<SigmoidFor<Format>>(widen_at<Format>(activated, j));
    }
    if (gated) {
      TELENS_UNROLL
      for (int j = 0; j < size; ++j) values[j] *= widen_at<Format>(factors, j);
    }
    return narrow_all<Format>(values);
  }
};

// `pack_width` is 1, or it divides the width of a row and all addresses are aligned to packs.
template <typename Format, typename Function, int pack_width, typename Thread>
TELENS_DEVICE void activate(const ActivationArguments& arguments, const Thread& thread,
                            BlockMaximum& shared) {
  using Bits = typename Format::Bits;
  const Scale scale = Scale::from(arguments.codes != nullptr ? *arguments.scale : 1.0F);
  std::uint32_t largest = 0;
  const auto use = [&](const PackOfRow& pack, const auto& inputs) {
    const auto y = inputs.template apply<Function>(arguments.gated);
    const std::int64_t at = pack.row * arguments.width + pack.column;
    if (arguments.y != nullptr) store_words(static_cast<Bits*>(arguments.y) + at, y);
    if (arguments.codes != nullptr) {
      store_words(arguments.codes + at,
                  quantize_words<Format>(arguments.format, y, scale, largest));
    }
  };
  // Two packs are loaded before the first is computed: one load per thread would not saturate
  // memory. If a second pack does not exist the first is read again, so that loads are
  // unconditional.
  using Inputs = ActivationInputs<Format, pack_width>;
  const PacksOfRows<pack_width> packs(thread, arguments.width);
  for (auto first = packs.first(); first.row < arguments.rows;) {
    const auto second = packs.after(first);
    const bool both = second.row < arguments.rows;
    const Inputs inputs = Inputs::at(arguments, first);
    const Inputs inputs_of_second = Inputs::at(arguments, both ? second : first);
    use(first, inputs);
    if (both) use(second, inputs_of_second);
    first = packs.after(second);
  }
  if (arguments.amax != nullptr) {
    update_amax<Format>(thread, largest_lane<Format>(largest), arguments.amax, shared);
  }
}

// The inputs of the gradients for one pack of a row.
template <typename Format, int size>
struct ActivationGradientInputs {
  using Elements = Words<typename Format::Bits, size>;
  Elements grad;
  Elements activated;
  Elements factors;  // of a gated activation

  static TELENS_DEVICE ActivationGradientInputs at(const ActivationGradientArguments& arguments,
                                                   std::int64_t row, std::int64_t column,
                                                   bool with_factors) {
    using Bits = typename Format::Bits;
    const auto* x = static_cast<const Bits*>(arguments.x);
    const auto* grad = static_cast<const Bits*>(arguments.grad);
    const auto place = ActivationPlace::of(row, column, arguments.width, arguments.gated);
    ActivationGradientInputs inputs{load_words<size>(grad + row * arguments.width + column),
                                    load_words<size>(x + place.activated),
                                    {}};
    if (with_factors) inputs.factors = load_words<size>(x + place.factor);
    return inputs;
  }

  // Returns the rounded gradients of the activated input.
  template <typename Function>
  TELENS_DEVICE Elements of_activated(bool with_factors) const {
    float dx[size];
    TELENS_UNROLL
    for (int j = 0; j < size; ++j) {
      float outer = widen_at<Format>(grad, j);  // gradient of the function's result
      if (with_factors) outer *= widen_at<Format>(factors, j);
      dx[j] =
          Function::template gradient<SigmoidFor<Format>>(outer, widen_at<Format>(activated, j));
    }
    return narrow_all<Format>(dx);
  }

  // Returns the gradients of a gated activation's factors.
  template <typename Function>
  TELENS_DEVICE Elements of_factors() const {
    float dx[size];
    TELENS_UNROLL
    for (int j = 0; j < size; ++j) {
      dx[j] = widen_at<Format>(grad, j) *
              Function::template value<SigmoidFor<Format>>(widen_at<Format>(activated, j));
    }
    return narrow_all<Format>(dx);
  }
};

template <typename Format, typename Function, int pack_width, typename Thread>
TELENS_DEVICE void activate_backward(const ActivationGradientArguments& arguments,
                                     const Thread& thread) {
  auto* dx = static_cast<typename Format::Bits*>(arguments.dx);
  const bool gated = arguments.gated;
  const PacksOfRows<pack_width> packs(thread, arguments.width);
  for (auto at = packs.first(); at.row < arguments.rows; at = packs.after(at)) {
    const auto inputs =
        ActivationGradientInputs<Format, pack_width>::at(arguments, at.row, at.column, gated);
    const auto place = ActivationPlace::of(at.row, at.column, arguments.width, gated);
    store_words(dx + place.activated, inputs.template of_activated<Function>(gated));
    if (gated) store_words(dx + place.factor, inputs.template of_factors<Function>());
  }
}

}  // namespace telens::cuda
