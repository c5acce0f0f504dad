// Device code. Norms, activations and gradients of activations, computed tile by tile and quantized
// in both orientations without storing them. Each element is rounded to the tensor's dtype before
// it is encoded, as if it had been stored.
#pragma once

#include "core/kernels/cuda/norm_activation/activation.cuh"
#include "core/kernels/cuda/norm_activation/normalization.cuh"
#include "core/kernels/cuda/quantize/quantize_transpose.cuh"

namespace telens::cuda {

// Encodes to a format known at run time: one kernel serves both FP8 formats.
template <typename Input>
struct EncodeFp8 {
  FormatId format;

  TELENS_DEVICE Fp8Words<kColumnsOfThread> operator()(
      const Words<typename Input::Bits, kColumnsOfThread>& x, const Scale& scale,
      std::uint32_t& largest) const {
    return quantize_words<Input>(format, x, scale, largest);
  }
};

// Normalized rows with known mean and rstd. gamma and beta are aligned to 16 bytes.
template <typename Format>
struct NormSource {
  using Elements = Words<typename Format::Bits, kColumnsOfThread>;
  struct Fetched {
    Elements x;
    float mean;
    float rstd;
  };
  using Columns = NormFactors<kColumnsOfThread>;
  static constexpr bool kFetchesTile = false;

  const NormArguments& arguments;

  TELENS_DEVICE Fetched fetch(std::int64_t row, std::int64_t column) const {
    const auto* x = static_cast<const typename Format::Bits*>(arguments.x);
    return {load_words<kColumnsOfThread>(x + row * arguments.columns + column),
            arguments.mean != nullptr ? arguments.mean[row] : 0.0F, arguments.rstd[row]};
  }
  TELENS_DEVICE Columns of_columns(std::int64_t column) const {
    return Columns::of(arguments, column);
  }
  TELENS_DEVICE Elements finish(const Fetched& fetched, const Columns& columns) const {
    return columns.template apply<Format>(fetched.x,
                                          ops::RowFactors::of(fetched.mean, fetched.rstd));
  }
};

// Activated rows. arguments.width is the width of a row, also for plain activations.
template <typename Format, typename Function>
struct ActivationSource {
  using Fetched = ActivationInputs<Format, kColumnsOfThread>;
  using Columns = NoColumns;
  static constexpr bool kFetchesTile = false;

  const ActivationArguments& arguments;

  TELENS_DEVICE Fetched fetch(std::int64_t row, std::int64_t column) const {
    return Fetched::at(arguments, {row, column});
  }
  TELENS_DEVICE Columns of_columns(std::int64_t) const { return {}; }
  TELENS_DEVICE typename Fetched::Elements finish(const Fetched& fetched, const Columns&) const {
    return fetched.template apply<Function>(arguments.gated);
  }
};

// The gradients of x. The first `width` columns are gradients of the activated input, the others of
// a gated activation's factors. The latter read grad and the activated input again, from the
// second-level cache, since the tiles in a band of rows run at the same time.
template <typename Format, typename Function>
struct ActivationGradientSource {
  using Inputs = ActivationGradientInputs<Format, kColumnsOfThread>;
  struct Fetched {
    Inputs inputs;
    bool of_factors;
  };
  using Columns = NoColumns;
  static constexpr bool kFetchesTile = false;

  const ActivationGradientArguments& arguments;

  TELENS_DEVICE Fetched fetch(std::int64_t row, std::int64_t column) const {
    const bool of_factors = column >= arguments.width;
    return {Inputs::at(arguments, row, of_factors ? column - arguments.width : column,
                       arguments.gated && !of_factors),
            of_factors};
  }
  TELENS_DEVICE Columns of_columns(std::int64_t) const { return {}; }
  TELENS_DEVICE typename Inputs::Elements finish(const Fetched& fetched, const Columns&) const {
    return fetched.of_factors ? fetched.inputs.template of_factors<Function>()
                              : fetched.inputs.template of_activated<Function>(arguments.gated);
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
