#include "core/kernels/cpu/quantize/fp8_ranges.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "core/kernels/cpu/quantize/dequantize_range.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include <algorithm>
#include <cmath>

#include "core/formats/dispatch.h"
#include "core/kernels/cpu/quantize/fp8_steps-inl.h"

HWY_BEFORE_NAMESPACE();
namespace telens::HWY_NAMESPACE {
namespace {

// The step of decode_range: as many elements as a vector has 16-bit lanes.
template <typename Input, typename Output>
struct DecodeStep {
  using Element = typename Output::Bits;

  HWY_INLINE void operator()(const std::uint8_t* codes, std::size_t i, Element* values) const {
    decode_to<Input, Output>(values + i, load_ahead(BytesOfCodes16(), codes + i));
  }
};

// The step of dequantize_range, with one of the scale types of fp8_steps-inl.h.
template <typename Input, typename Output, typename Scale>
struct DequantizeStep {
  using Element = typename Output::Bits;

  Scale scale;

  // |value| * scale, without the sign that a processor may give to infinity * 0.
  static HWY_INLINE FloatVector scaled(FloatVector value, FloatVector factor) {
    return hn::Abs(hn::Mul(value, factor));
  }

  HWY_INLINE void operator()(const std::uint8_t* codes, std::size_t i, Element* values) const {
    const Decoded decoded = decode_codes<Input>(load_ahead(BytesOfCodes16(), codes + i));
    const auto sign = hn::Xor(decoded.sign, scale.sign);
    if constexpr (Output::kId == FormatId::fp32) {
      const Codes32 words;
      const Float32s floats;
      const auto factor = scale.load(i, OneAfterTheOther());
      const auto [lower, upper] = widen_in_order(decoded.magnitude);
      const auto [lower_sign, upper_sign] = widen_in_order(sign);
      const auto value = [&](Vector32 magnitude, FloatVector its_factor,
                             Vector32 its_sign) HWY_ATTR {
        const auto product = scaled(hn::BitCast(floats, magnitude), its_factor);
        return hn::Or(hn::BitCast(words, product), its_sign);
      };
      hn::StoreU(value(lower, factor.even, lower_sign), words, values + i);
      hn::StoreU(value(upper, factor.odd, upper_sign), words, values + i + hn::Lanes(words));
    } else {
      const auto factor = scale.load(i, TakingTurns());
      const auto [even, odd] = widen_bf16(decoded.magnitude);
      const auto code =
          round_magnitudes<Output>({scaled(even, factor.even), scaled(odd, factor.odd)});
      hn::StoreU(hn::Or(code, sign), Codes16(), values + i);
    }
  }
};

// The step for the tail, with scales from memory that ends where the elements do.
template <typename Step>
HWY_INLINE Step at_tail(const Step& step, std::size_t, std::size_t, float*) {
  return step;
}

template <typename Input, typename Output>
HWY_INLINE DequantizeStep<Input, Output, ScalePerElement> at_tail(
    const DequantizeStep<Input, Output, ScalePerElement>& step, std::size_t i, std::size_t rest,
    float* scales) {
  std::copy_n(step.scale.scales + i, rest, scales);
  return {{scales}};
}

template <typename Step, typename Element>
void map_codes(const Step& step, const std::uint8_t* codes, std::size_t size, Element* values) {
  const Codes16 lanes;
  const std::size_t stride = hn::Lanes(lanes);
  std::size_t i = 0;
  for (; i + stride <= size; i += stride) step(codes, i, values);
  if (const std::size_t rest = size - i; rest > 0) {
    std::uint8_t tail[hn::MaxLanes(lanes)] = {};
    float tail_scales[hn::MaxLanes(lanes)] = {};
    Element tail_values[hn::MaxLanes(lanes)];
    std::copy_n(codes + i, rest, tail);
    at_tail(step, i, rest, tail_scales)(tail, 0, tail_values);
    std::copy_n(tail_values, rest, values + i);
  }
}

}  // namespace

void dequantize_range(FormatId input, const std::uint8_t* codes, std::size_t size, float scale_inv,
                      FormatId output, void* values) {
  dispatch_fp8_format(input, "dequantize_range", [&]<typename Input>() {
    dispatch_high_precision_format(output, "dequantize_range", [&]<typename Output>() {
      // A NaN scale loses its payload.
      const float scale = std::isnan(scale_inv) ? decode<FP32>(FP32::kNanCode) : scale_inv;
      const DequantizeStep<Input, Output, OneScale> step{
          {hn::Set(Float32s(), std::fabs(scale)),
           hn::Set(Codes16(), std::signbit(scale_inv) ? kSign16 : std::uint16_t{0})}};
      map_codes(step, codes, size, static_cast<typename Output::Bits*>(values));
    });
  });
}

void dequantize_range_by_scales(FormatId input, const std::uint8_t* codes, std::size_t size,
                                const float* scales, FormatId output, void* values) {
  dispatch_element_format(input, "dequantize_range_by_scales", [&]<typename Input>() {
    dispatch_high_precision_format(output, "dequantize_range_by_scales", [&]<typename Output>() {
      const DequantizeStep<Input, Output, ScalePerElement> step{{scales}};
      map_codes(step, codes, size, static_cast<typename Output::Bits*>(values));
    });
  });
}

void decode_range(FormatId input, const std::uint8_t* codes, std::size_t size, FormatId output,
                  void* values) {
  dispatch_fp8_format(input, "decode_range", [&]<typename Input>() {
    if (output == FormatId::bf16) {
      map_codes(DecodeStep<Input, BF16>(), codes, size, static_cast<BF16::Bits*>(values));
    } else {
      map_codes(DecodeStep<Input, FP32>(), codes, size, static_cast<FP32::Bits*>(values));
    }
  });
}

}  // namespace telens::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace telens {
HWY_EXPORT(dequantize_range);
HWY_EXPORT(dequantize_range_by_scales);
HWY_EXPORT(decode_range);

namespace kernels {

void dequantize_range(FormatId input, const std::uint8_t* codes, std::size_t size, float scale_inv,
                      FormatId output, void* values) {
  HWY_DYNAMIC_DISPATCH(telens::dequantize_range)(input, codes, size, scale_inv, output, values);
}

void dequantize_range_by_scales(FormatId input, const std::uint8_t* codes, std::size_t size,
                                const float* scales, FormatId output, void* values) {
  HWY_DYNAMIC_DISPATCH(telens::dequantize_range_by_scales)
  (input, codes, size, scales, output, values);
}

void decode_range(FormatId input, const std::uint8_t* codes, std::size_t size, FormatId output,
                  void* values) {
  HWY_DYNAMIC_DISPATCH(telens::decode_range)(input, codes, size, output, values);
}

}  // namespace kernels
}  // namespace telens
#endif
