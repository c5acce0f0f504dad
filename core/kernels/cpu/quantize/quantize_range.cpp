#include "core/kernels/cpu/quantize/fp8_ranges.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "core/kernels/cpu/quantize/quantize_range.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include <algorithm>
#include <cmath>

#include "core/formats/dispatch.h"
#include "core/kernels/cpu/quantize/fp8_steps-inl.h"

HWY_BEFORE_NAMESPACE();
namespace telens::HWY_NAMESPACE {
namespace {

// A separate function: GCC 12 keeps a loop's accumulators on the stack if the function that
// contains the loop also stores them.
template <typename Lanes>
HWY_NOINLINE std::uint32_t largest_lane(hn::Vec<Lanes> vector) {
  return static_cast<std::uint32_t>(hn::GetLane(hn::MaxOfLanes(Lanes(), vector)));
}

template <typename Input, typename Output>
std::uint32_t quantize_elements(const typename Input::Bits* x, std::size_t size, float scale,
                                std::uint8_t* codes) {
  const Codes16 lanes16;
  const QuantizeStep<Input, Output, OneScale> step{
      {hn::Set(Float32s(), std::fabs(scale)),
       hn::Set(lanes16, std::signbit(scale) ? kSign16 : std::uint16_t{0})}};
  const std::size_t stride = hn::Lanes(lanes16);
  auto amax = hn::Zero(LanesOf<Input>());
  std::size_t i = 0;
  for (; i + stride <= size; i += stride) step(x, i, codes, amax);
  if (const std::size_t rest = size - i; rest > 0) {  // zero padding does not change a maximum
    typename Input::Bits tail[hn::MaxLanes(lanes16)] = {};
    std::uint8_t tail_codes[hn::MaxLanes(lanes16)];
    std::copy_n(x + i, rest, tail);
    step(tail, 0, tail_codes, amax);
    std::copy_n(tail_codes, rest, codes + i);
  }
  return largest_lane<LanesOf<Input>>(amax);
}

template <typename Input, typename Output>
void quantize_elements_by_scales(const typename Input::Bits* x, std::size_t size,
                                 const float* scales, std::uint8_t* codes) {
  const Codes16 lanes16;
  const std::size_t stride = hn::Lanes(lanes16);
  const QuantizeStep<Input, Output, ScalePerElement> step{{scales}};
  auto amax = hn::Zero(LanesOf<Input>());  // unused here; the compiler removes it
  std::size_t i = 0;
  for (; i + stride <= size; i += stride) step(x, i, codes, amax);
  if (const std::size_t rest = size - i; rest > 0) {
    typename Input::Bits tail[hn::MaxLanes(lanes16)] = {};
    float tail_scales[hn::MaxLanes(lanes16)] = {};
    std::uint8_t tail_codes[hn::MaxLanes(lanes16)];
    std::copy_n(x + i, rest, tail);
    std::copy_n(scales + i, rest, tail_scales);
    const QuantizeStep<Input, Output, ScalePerElement> last{{tail_scales}};
    last(tail, 0, tail_codes, amax);
    std::copy_n(tail_codes, rest, codes + i);
  }
}

template <typename Input>
std::uint32_t amax_elements(const typename Input::Bits* x, std::size_t size) {
  const LanesOf<Input> lanes;
  const std::size_t stride = hn::Lanes(lanes);
  const auto size_at = [&](const typename Input::Bits* at)
                           HWY_ATTR { return get_magnitude<Input>(load_ahead(lanes, at)); };
  // Four accumulators, so that a maximum does not wait for the previous one.
  auto amax0 = hn::Zero(lanes), amax1 = amax0, amax2 = amax0, amax3 = amax0;
  std::size_t i = 0;
  for (; i + 4 * stride <= size; i += 4 * stride) {
    amax0 = hn::Max(amax0, size_at(x + i));
    amax1 = hn::Max(amax1, size_at(x + i + stride));
    amax2 = hn::Max(amax2, size_at(x + i + 2 * stride));
    amax3 = hn::Max(amax3, size_at(x + i + 3 * stride));
  }
  for (; i + stride <= size; i += stride) amax0 = hn::Max(amax0, size_at(x + i));
  if (const std::size_t rest = size - i; rest > 0) {
    typename Input::Bits tail[hn::MaxLanes(lanes)] = {};
    std::copy_n(x + i, rest, tail);
    amax1 = hn::Max(amax1, size_at(tail));
  }
  return largest_lane<LanesOf<Input>>(hn::Max(hn::Max(amax0, amax1), hn::Max(amax2, amax3)));
}

}  // namespace

std::uint32_t quantize_range(FormatId input, const void* x, std::size_t size, float scale,
                             FormatId output, std::uint8_t* codes) {
  return dispatch_high_precision_format(input, "quantize_range", [&]<typename Input>() {
    return dispatch_fp8_format(output, "quantize_range", [&]<typename Output>() {
      return quantize_elements<Input, Output>(static_cast<const typename Input::Bits*>(x), size,
                                              scale, codes);
    });
  });
}

void quantize_range_by_scales(FormatId input, const void* x, std::size_t size, const float* scales,
                              FormatId output, std::uint8_t* codes) {
  dispatch_high_precision_format(input, "quantize_range_by_scales", [&]<typename Input>() {
    dispatch_element_format(output, "quantize_range_by_scales", [&]<typename Output>() {
      quantize_elements_by_scales<Input, Output>(static_cast<const typename Input::Bits*>(x), size,
                                                 scales, codes);
    });
  });
}

std::uint32_t amax_range(FormatId input, const void* x, std::size_t size) {
  return dispatch_high_precision_format(input, "amax_range", [&]<typename Input>() {
    return amax_elements<Input>(static_cast<const typename Input::Bits*>(x), size);
  });
}

}  // namespace telens::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace telens {
HWY_EXPORT(quantize_range);
HWY_EXPORT(quantize_range_by_scales);
HWY_EXPORT(amax_range);

namespace kernels {

std::uint32_t quantize_range(FormatId input, const void* x, std::size_t size, float scale,
                             FormatId output, std::uint8_t* codes) {
  return HWY_DYNAMIC_DISPATCH(telens::quantize_range)(input, x, size, scale, output, codes);
}

void quantize_range_by_scales(FormatId input, const void* x, std::size_t size, const float* scales,
                              FormatId output, std::uint8_t* codes) {
  HWY_DYNAMIC_DISPATCH(telens::quantize_range_by_scales)(input, x, size, scales, output, codes);
}

std::uint32_t amax_range(FormatId input, const void* x, std::size_t size) {
  return HWY_DYNAMIC_DISPATCH(telens::amax_range)(input, x, size);
}

}  // namespace kernels
}  // namespace telens
#endif
