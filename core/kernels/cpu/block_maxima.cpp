#include "core/kernels/cpu/block_maxima.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "core/kernels/cpu/block_maxima.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include <algorithm>

#include "core/formats/formats.h"
#include "core/kernels/cpu/element_type.h"
#include "core/kernels/cpu/float_lanes-inl.h"

HWY_BEFORE_NAMESPACE();
namespace telens::HWY_NAMESPACE {
namespace {

using kernels::NanInMaximum;

// Magnitudes as the bits of their FP32 values, which order like the values, NaNs above all.
using Magnitudes = hn::RebindToSigned<Floats>;
using MagnitudeVec = hn::Vec<Magnitudes>;
inline constexpr Magnitudes kMagnitudes{};

template <NanInMaximum nan>
HWY_INLINE MagnitudeVec magnitudes(FloatVec x) {
  const auto bits = hn::BitCast(kMagnitudes, hn::Abs(x));
  if constexpr (nan == NanInMaximum::wins) {
    return bits;
  } else {
    const auto infinity = hn::Set(kMagnitudes, static_cast<std::int32_t>(FP32::kTopExponentCode));
    return hn::IfThenZeroElse(hn::Gt(bits, infinity), bits);
  }
}

// A function of its own: GCC 12 keeps the accumulators of a loop on the stack when the same
// function stores them.
HWY_NOINLINE float largest_lane(MagnitudeVec vector) {
  return bits_as<float>(hn::GetLane(hn::MaxOfLanes(kMagnitudes, vector)));
}

template <NanInMaximum nan, typename T>
float largest(const T* x, std::int64_t size) {
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(kFloats));
  auto maximum = hn::Zero(kMagnitudes);
  std::int64_t i = 0;
  for (; i + lanes <= size; i += lanes) {
    maximum = hn::Max(maximum, magnitudes<nan>(load(x + i)));
  }
  if (i < size) {
    const auto rest = static_cast<std::size_t>(size - i);
    maximum = hn::Max(maximum, magnitudes<nan>(LastLanes{i, rest}(x)));
  }
  return largest_lane(maximum);
}

template <NanInMaximum nan, typename T>
void maxima_of_columns(const T* x, std::int64_t size, float* maxima) {
  map_lanes(size, maxima, [&](const auto& at) HWY_ATTR {
    const auto so_far = hn::BitCast(kMagnitudes, at(maxima));
    return hn::BitCast(kFloats, hn::Max(so_far, magnitudes<nan>(at(x))));
  });
}

template <typename Visitor>
void dispatch_nan(NanInMaximum nan, const Visitor& visitor) {
  if (nan == NanInMaximum::wins) {
    visitor.template operator()<NanInMaximum::wins>();
  } else {
    visitor.template operator()<NanInMaximum::left_out>();
  }
}

}  // namespace

void block_maxima(FormatId input, const void* x, std::size_t size, std::size_t block,
                  NanInMaximum nan, float* maxima) {
  dispatch_element_type(input, [&]<typename T>() {
    dispatch_nan(nan, [&]<NanInMaximum policy>() {
      const T* const elements = static_cast<const T*>(x);
      for (std::size_t begin = 0; begin < size; begin += block) {
        const auto length = static_cast<std::int64_t>(std::min(block, size - begin));
        *maxima++ = largest<policy>(elements + begin, length);
      }
    });
  });
}

void update_column_maxima(FormatId input, const void* x, std::size_t size, NanInMaximum nan,
                          float* maxima) {
  dispatch_element_type(input, [&]<typename T>() {
    dispatch_nan(nan, [&]<NanInMaximum policy>() {
      maxima_of_columns<policy>(static_cast<const T*>(x), static_cast<std::int64_t>(size), maxima);
    });
  });
}

}  // namespace telens::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace telens {
HWY_EXPORT(block_maxima);
HWY_EXPORT(update_column_maxima);

namespace kernels {

void block_maxima(FormatId input, const void* x, std::size_t size, std::size_t block,
                  NanInMaximum nan, float* maxima) {
  HWY_DYNAMIC_DISPATCH(telens::block_maxima)(input, x, size, block, nan, maxima);
}

void update_column_maxima(FormatId input, const void* x, std::size_t size, NanInMaximum nan,
                          float* maxima) {
  HWY_DYNAMIC_DISPATCH(telens::update_column_maxima)(input, x, size, nan, maxima);
}

}  // namespace kernels
}  // namespace telens
#endif
