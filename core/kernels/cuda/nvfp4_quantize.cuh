// NVFP4: E2M1 in blocks of 16 elements under E4M3 scales, and those under one scale of the tensor.
// Device code.
#pragma once

#include "core/formats/philox.h"
#include "core/formats/scaling_mode.h"
#include "core/formats/stochastic_rounding.h"
#include "core/kernels/cuda/block_lines.cuh"
#include "core/kernels/cuda/block_squares.cuh"
#include "core/ops/block_scale_formula.h"

namespace telens::cuda {

// What one orientation's tensor scale is made of, and where it goes.
struct Nvfp4TensorScale {
  const float* amax;  // the largest magnitude that is a number
  float* scale;       // [1]; nullptr: not wanted
};

struct Nvfp4Arguments {
  BlockMatrix matrix;
  BlockOutputs<std::uint8_t> outputs;
  Nvfp4TensorScale rowwise;
  Nvfp4TensorScale columnwise;
  const std::int64_t* random_state;  // [2], key and offset; nullptr: rounds to nearest
  bool squares;
};

template <bool by_chance>
struct Nvfp4Scaling {
  using ScaleCode = std::uint8_t;
  static constexpr int kBlock = block_length(ScalingMode::nvfp4);
  static constexpr NanInMaximum kNan = NanInMaximum::wins;  // it makes the block's scale a NaN
  static constexpr bool kTwoCodesAByte = true;
  static constexpr bool kOneScaleASquare = false;

  float tensor_factor;
  float tensor_scale;
  ElementWords words;  // by chance

  // orientation: 0 rowwise, 1 columnwise.
  static TELENS_DEVICE Nvfp4Scaling of(const Nvfp4TensorScale& tensor, std::uint32_t orientation,
                                       const std::int64_t* random_state) {
    const float factor = nvfp4_tensor_factor(*tensor.amax);
    Nvfp4Scaling scaling{factor, 1.0F / factor, {}};
    if constexpr (by_chance) scaling.words = ElementWords::of(random_state, orientation);
    return scaling;
  }

  TELENS_DEVICE BlockScale<ScaleCode> scale_of(float amax) const {
    const std::uint8_t code = nvfp4_block_scale(amax, tensor_factor);
    return {code, nvfp4_factor(code, tensor_scale)};
  }

  template <typename Input, bool whole, typename FactorOf>
  TELENS_DEVICE Eight<std::uint8_t> encode(const Eight<typename Input::Bits>& x, std::int64_t index,
                                           const FactorOf& factor_of) const {
    Eight<std::uint8_t> codes;
    if constexpr (!by_chance) {
      TELENS_UNROLL
      for (int i = 0; i < kColumnsOfThread; ++i) {
        codes.values[i] = nearest<Input>(x.values[i], factor_of(i));
      }
    } else if constexpr (whole) {
      TELENS_UNROLL
      for (int four = 0; four < kColumnsOfThread; four += 4) {
        const PhiloxCounter random = words.of_four(static_cast<std::uint64_t>(index + four));
        TELENS_UNROLL
        for (int i = four; i < four + 4; ++i) {
          const float value = widen<Input>(x.values[i]) * factor_of(i);
          codes.values[i] = encode_e2m1_stochastically(value, random[i - four]);
        }
      }
    } else {
      TELENS_UNROLL
      for (int i = 0; i < kColumnsOfThread; ++i) {
        const float value = widen<Input>(x.values[i]) * factor_of(i);
        const std::uint32_t random = words.of_one(static_cast<std::uint64_t>(index + i));
        codes.values[i] = encode_e2m1_stochastically(value, random);
      }
    }
    return codes;
  }

 private:
  // A NaN's code is positive.
  template <typename Input>
  static TELENS_DEVICE std::uint8_t nearest(typename Input::Bits x, float factor) {
    constexpr int kToCode = Input::kWidth - E2M1::kWidth;
    const typename Input::Bits magnitude = x & Input::kMagnitudeMask;
    const float value = widen<Input>(magnitude) * factor;
    const std::uint32_t sign = value == value ? (x & Input::kSignMask) >> kToCode : 0;
    return static_cast<std::uint8_t>(encode_e2m1_magnitude(value) | sign);
  }
};

template <typename Input, bool whole, bool by_chance, typename Thread>
TELENS_DEVICE void quantize_nvfp4(const Nvfp4Arguments& arguments, const Thread& thread,
                                  LinesShared<Input, Nvfp4Scaling<by_chance>::kBlock>& shared) {
  using Scaling = Nvfp4Scaling<by_chance>;
  const auto rowwise = Scaling::of(arguments.rowwise, 0, arguments.random_state);
  const auto columnwise = Scaling::of(arguments.columnwise, 1, arguments.random_state);
  if (thread.block() == 0 && thread.index() == 0) {
    if (arguments.rowwise.scale != nullptr) *arguments.rowwise.scale = rowwise.tensor_scale;
    if (arguments.columnwise.scale != nullptr) {
      *arguments.columnwise.scale = columnwise.tensor_scale;
    }
  }
  quantize_lines<Input, whole>(arguments.matrix, arguments.outputs, rowwise, columnwise, thread,
                               shared);
}

// Both orientations have what would be the rowwise one's scale and random words.
template <typename Input, bool whole, bool by_chance, typename Thread>
TELENS_DEVICE void quantize_nvfp4_squares(const Nvfp4Arguments& arguments, const Thread& thread,
                                          SquaresShared<Nvfp4Scaling<by_chance>::kBlock>& shared) {
  const auto scaling = Nvfp4Scaling<by_chance>::of(arguments.rowwise, 0, arguments.random_state);
  if (thread.block() == 0 && thread.index() == 0) {
    for (float* const scale : {arguments.rowwise.scale, arguments.columnwise.scale}) {
      if (scale != nullptr) *scale = scaling.tensor_scale;
    }
  }
  quantize_squares<Input, whole>(arguments.matrix, arguments.outputs, scaling, thread, shared);
}

}  // namespace telens::cuda
