// Norms, activations and gradients of activations made tile by tile and quantized in both
// orientations without being stored: device code. Each element is rounded to the tensor's dtype
// before it is encoded, as if it had been stored.
#pragma once

#include "core/kernels/cuda/activation.cuh"
#include "core/kernels/cuda/normalization.cuh"
#include "core/kernels/cuda/quantize_transpose.cuh"

namespace telens::cuda {

// The format of the codes is known at run time: one kernel serves both.
template <typename Input>
struct EncodeFp8 {
  FormatId format;

  TELENS_DEVICE Pack<std::uint8_t, kColumnsOfThread> operator()(
      const Pack<typename Input::Bits, kColumnsOfThread>& pack, const Scale& scale,
      std::uint32_t& largest) const {
    return format == FormatId::e4m3 ? quantize_pack<Input, E4M3>(pack, scale, largest)
                                    : quantize_pack<Input, E5M2>(pack, scale, largest);
  }
};

// Normalized rows, whose mean and rstd are known.
template <typename Format>
struct NormSource {
  const NormArguments& arguments;

  TELENS_DEVICE Pack<typename Format::Bits, kColumnsOfThread> load(std::int64_t row,
                                                                   std::int64_t column) const {
    using Bits = typename Format::Bits;
    const float mean = arguments.mean != nullptr ? arguments.mean[row] : 0.0F;
    const float rstd = arguments.rstd[row];
    auto pack = load_pack<kColumnsOfThread>(static_cast<const Bits*>(arguments.x) +
                                            row * arguments.columns + column);
    TELENS_UNROLL
    for (int j = 0; j < kColumnsOfThread; ++j) {
      pack.values[j] = narrow<Format>(
          normalized(widen<Format>(pack.values[j]), mean, rstd, arguments.gamma[column + j],
                     arguments.beta != nullptr ? arguments.beta + column + j : nullptr));
    }
    return pack;
  }
};

// Activated rows. arguments.width is that of a row, of plain activations too.
template <typename Format, typename Function>
struct ActivationSource {
  const ActivationArguments& arguments;

  TELENS_DEVICE Pack<typename Format::Bits, kColumnsOfThread> load(std::int64_t row,
                                                                   std::int64_t column) const {
    return activated_pack<Format, Function, kColumnsOfThread>(
        static_cast<const typename Format::Bits*>(arguments.x),
        place_of(row * arguments.width + column, arguments.width, arguments.gated),
        arguments.gated);
  }
};

// The gradients of x: of what is activated in the first `width` columns, of a gated activation's
// factors in the others. These read grad and what is activated once more, from the second-level
// cache, since the tiles of one band of rows run side by side.
template <typename Format, typename Function>
struct ActivationGradientSource {
  const ActivationGradientArguments& arguments;

  TELENS_DEVICE Pack<typename Format::Bits, kColumnsOfThread> load(std::int64_t row,
                                                                   std::int64_t column) const {
    using Bits = typename Format::Bits;
    const auto* x = static_cast<const Bits*>(arguments.x);
    const bool of_factors = column >= arguments.width;
    const std::int64_t element =
        row * arguments.width + (of_factors ? column - arguments.width : column);
    const ActivationPlace place = place_of(element, arguments.width, arguments.gated);
    const auto grad =
        load_pack<kColumnsOfThread>(static_cast<const Bits*>(arguments.grad) + element);
    const auto activated = load_pack<kColumnsOfThread>(x + place.activated);
    if (of_factors) return gradient_of_factors<Format, Function>(grad, activated);
    if (!arguments.gated) {
      return gradient_of_activated<Format, Function, kColumnsOfThread>(grad, activated, nullptr);
    }
    const auto factors = load_pack<kColumnsOfThread>(x + place.factor);
    return gradient_of_activated<Format, Function>(grad, activated, &factors);
  }
};

template <typename Format, typename Thread>
TELENS_DEVICE void normalize_and_cast(const NormArguments& arguments, const TileCast& cast,
                                      const Thread& thread, TransposeShared& shared) {
  cast_tiles<Format>(cast, NormSource<Format>{arguments}, EncodeFp8<Format>{arguments.format},
                     thread, shared);
}

template <typename Format, typename Function, typename Thread>
TELENS_DEVICE void activate_and_cast(const ActivationArguments& arguments, const TileCast& cast,
                                     const Thread& thread, TransposeShared& shared) {
  cast_tiles<Format>(cast, ActivationSource<Format, Function>{arguments},
                     EncodeFp8<Format>{arguments.format}, thread, shared);
}

template <typename Format, typename Function, typename Thread>
TELENS_DEVICE void activate_backward_and_cast(const ActivationGradientArguments& arguments,
                                              FormatId format, const TileCast& cast,
                                              const Thread& thread, TransposeShared& shared) {
  cast_tiles<Format>(cast, ActivationGradientSource<Format, Function>{arguments},
                     EncodeFp8<Format>{format}, thread, shared);
}

}  // namespace telens::cuda
