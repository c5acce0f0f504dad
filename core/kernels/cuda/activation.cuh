// Activation functions, plain and gated, and their gradients: device code. Arithmetic is FP32; what
// is stored is rounded once. A fused quantization encodes the rounded values, so that its codes are
// those of the activation followed by quantize.
#pragma once

#include "core/kernels/cuda/quantize.cuh"
#include "core/ops/activation_formula.h"
#include "core/ops/activation_layout.h"

namespace telens::cuda {

// A plain activation is one row; a gated one has rows of 2 * width, of which the first half is
// activated and multiplied by the second.
struct ActivationArguments {
  const void* x;
  std::int64_t rows;
  std::int64_t width;  // of the result
  void* y;             // [rows, width]; nullptr: not wanted
  bool gated;
  const float* scale;   // of the codes
  FormatId format;      // of the codes: e4m3 or e5m2
  float* amax;          // becomes max(amax, max |y|); nullptr: not wanted
  std::uint8_t* codes;  // [rows, width]; nullptr: not wanted
};

struct ActivationGradientArguments {
  const void* grad;  // [rows, width]
  const void* x;
  std::int64_t rows;
  std::int64_t width;
  bool gated;
  void* dx;  // as x
};

TELENS_DEVICE float sigmoid(float z) { return 1.0F / (1.0F + std::exp(-z)); }

template <typename Coefficients>
struct SigmoidWeighted {
  static TELENS_DEVICE float weight(float x) {
    return sigmoid(x * (Coefficients::kCubic * (x * x) + Coefficients::kLinear));
  }
  static TELENS_DEVICE float value(float x) { return x * weight(x); }
  static TELENS_DEVICE float derivative(float x) {
    const float s = weight(x);
    const float square = x * x < ops::kLargestSquare ? x * x : ops::kLargestSquare;
    const float slope = 3 * Coefficients::kCubic * square + Coefficients::kLinear;
    return x * (s * (1.0F - s)) * slope + s;
  }
};

// NaN passes: it is not below zero.
struct Relu {
  static TELENS_DEVICE float value(float x) { return x < 0.0F ? 0.0F : x; }
  static TELENS_DEVICE float derivative(float x) { return x > 0.0F ? 1.0F : 0.0F; }
};

struct SquaredRelu {
  static TELENS_DEVICE float value(float x) { return Relu::value(x) * Relu::value(x); }
  static TELENS_DEVICE float derivative(float x) { return 2 * Relu::value(x); }
};

// Calls visitor.operator()<Function>().
template <typename Visitor>
decltype(auto) dispatch_activation(ops::ActivationFunction function, Visitor&& visitor) {
  return ops::dispatch_activation<SigmoidWeighted, Relu, SquaredRelu>(function, visitor);
}

// Where pack `i` of the results finds its inputs: those activated, and the factors behind them.
struct ActivationPlace {
  std::int64_t activated;
  std::int64_t factor;
};

TELENS_DEVICE ActivationPlace place_of(std::int64_t element, std::int64_t width, bool gated) {
  if (!gated) return {element, element};
  const std::int64_t start = element / width * 2 * width + element % width;
  return {start, start + width};
}

// Results of the function, rounded.
template <typename Format, typename Function, int pack_width>
TELENS_DEVICE Pack<typename Format::Bits, pack_width> activated_pack(const typename Format::Bits* x,
                                                                     const ActivationPlace& place,
                                                                     bool gated) {
  const auto activated = load_pack<pack_width>(x + place.activated);
  float values[pack_width];
  TELENS_UNROLL
  for (int j = 0; j < pack_width; ++j) {
    values[j] = Function::value(widen<Format>(activated.values[j]));
  }
  if (gated) {
    const auto factors = load_pack<pack_width>(x + place.factor);
    TELENS_UNROLL
    for (int j = 0; j < pack_width; ++j) values[j] *= widen<Format>(factors.values[j]);
  }
  Pack<typename Format::Bits, pack_width> y;
  TELENS_UNROLL
  for (int j = 0; j < pack_width; ++j) y.values[j] = narrow<Format>(values[j]);
  return y;
}

// `width` of a pack divides the width of a row, and all addresses are aligned to packs, or it is 1.
template <typename Format, typename Function, int pack_width, typename Thread>
TELENS_DEVICE void activate(const ActivationArguments& arguments, const Thread& thread,
                            BlockMaximum& shared) {
  using Bits = typename Format::Bits;
  const auto* x = static_cast<const Bits*>(arguments.x);
  const std::int64_t size = arguments.rows * arguments.width;
  const Scale scale = Scale::from(arguments.codes != nullptr ? *arguments.scale : 1.0F);
  std::uint32_t largest = 0;
  for (std::int64_t i = (thread.block() * kThreads + thread.index()) * pack_width; i < size;
       i += thread.blocks() * kThreads * pack_width) {
    const auto y = activated_pack<Format, Function, pack_width>(
        x, place_of(i, arguments.width, arguments.gated), arguments.gated);
    if (arguments.y != nullptr) store_pack(static_cast<Bits*>(arguments.y) + i, y);
    if (arguments.codes != nullptr) {
      store_pack(arguments.codes + i, arguments.format == FormatId::e4m3
                                          ? quantize_pack<Format, E4M3>(y, scale, largest)
                                          : quantize_pack<Format, E5M2>(y, scale, largest));
    }
  }
  if (arguments.amax != nullptr) update_amax<Format>(thread, largest, arguments.amax, shared);
}

// The gradients of what is activated, rounded. factors: of a gated activation; nullptr: none.
template <typename Format, typename Function, int size>
TELENS_DEVICE Pack<typename Format::Bits, size> gradient_of_activated(
    const Pack<typename Format::Bits, size>& grad,
    const Pack<typename Format::Bits, size>& activated,
    const Pack<typename Format::Bits, size>* factors) {
  Pack<typename Format::Bits, size> dx;
  TELENS_UNROLL
  for (int j = 0; j < size; ++j) {
    float outer = widen<Format>(grad.values[j]);  // the gradient of what the function returned
    if (factors != nullptr) outer *= widen<Format>(factors->values[j]);
    dx.values[j] = narrow<Format>(outer * Function::derivative(widen<Format>(activated.values[j])));
  }
  return dx;
}

// Those of a gated activation's factors.
template <typename Format, typename Function, int size>
TELENS_DEVICE Pack<typename Format::Bits, size> gradient_of_factors(
    const Pack<typename Format::Bits, size>& grad,
    const Pack<typename Format::Bits, size>& activated) {
  Pack<typename Format::Bits, size> dx;
  TELENS_UNROLL
  for (int j = 0; j < size; ++j) {
    dx.values[j] = narrow<Format>(widen<Format>(grad.values[j]) *
                                  Function::value(widen<Format>(activated.values[j])));
  }
  return dx;
}

template <typename Format, typename Function, int pack_width, typename Thread>
TELENS_DEVICE void activate_backward(const ActivationGradientArguments& arguments,
                                     const Thread& thread) {
  using Bits = typename Format::Bits;
  const auto* x = static_cast<const Bits*>(arguments.x);
  auto* dx = static_cast<Bits*>(arguments.dx);
  const std::int64_t size = arguments.rows * arguments.width;
  for (std::int64_t i = (thread.block() * kThreads + thread.index()) * pack_width; i < size;
       i += thread.blocks() * kThreads * pack_width) {
    const ActivationPlace place = place_of(i, arguments.width, arguments.gated);
    const auto grad = load_pack<pack_width>(static_cast<const Bits*>(arguments.grad) + i);
    const auto activated = load_pack<pack_width>(x + place.activated);
    if (arguments.gated) {
      const auto factors = load_pack<pack_width>(x + place.factor);
      store_pack(dx + place.factor, gradient_of_factors<Format, Function>(grad, activated));
      store_pack(dx + place.activated,
                 gradient_of_activated<Format, Function>(grad, activated, &factors));
    } else {
      store_pack(dx + place.activated,
                 gradient_of_activated<Format, Function, pack_width>(grad, activated, nullptr));
    }
  }
}

}  // namespace telens::cuda
