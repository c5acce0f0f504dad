#include "core/kernels/cpu/quantize/fp8_ranges.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "core/kernels/cpu/quantize/block_maxima.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include <algorithm>

#include "core/formats/formats.h"
#include "core/kernels/cpu/element_type.h"
#include "core/kernels/cpu/float_lanes-inl.h"

HWY_BEFORE_NAMESPACE();
namespace telens::HWY_NAMESPACE {
namespace {

// Magnitudes as the bits of their FP32 values. They have the order of the values; NaNs are largest.
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

// A separate function: GCC 12 keeps a loop's accumulators on the stack if the function that
// contains the loop also stores them.
HWY_NOINLINE float largest_lane(MagnitudeVec vector) {
  return bits_as<float>(hn::GetLane(hn::MaxOfLanes(kMagnitudes, vector)));
}

// The maximum over `vectors` whole vectors.
template <NanInMaximum nan, typename T>
HWY_INLINE MagnitudeVec largest_of_vectors(const T* x, std::int64_t vectors) {
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(kFloats));
  auto maximum = hn::Zero(kMagnitudes);
  for (std::int64_t i = 0; i < vectors; ++i) {
    maximum = hn::Max(maximum, magnitudes<nan>(load(x + i * lanes)));
  }
  return maximum;
}

template <NanInMaximum nan, typename T>
float largest(const T* x, std::int64_t size) {
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(kFloats));
  auto maximum = largest_of_vectors<nan>(x, size / lanes);
  if (const std::int64_t rest = size % lanes; rest > 0) {
    const LastLanes at{size - rest, static_cast<std::size_t>(rest)};
    maximum = hn::Max(maximum, magnitudes<nan>(at(x)));
  }
  return largest_lane(maximum);
}

// Lane i of the result is the maximum of the lanes i, i + 4, i + 8, ...
template <typename Tag>
HWY_INLINE hn::Vec<hn::CappedTag<std::int32_t, 4>> fold_to_four(Tag lanes, hn::Vec<Tag> vector) {
  if constexpr (hn::MaxLanes(lanes) > 4) {
    const hn::Half<Tag> half;
    return fold_to_four(half, hn::Max(hn::LowerHalf(half, vector), hn::UpperHalf(half, vector)));
  } else {
    return vector;
  }
}

// Stores the largest lane of a, b, c and d. Each step combines the halves of two vectors into one.
HWY_INLINE void store_largest_lanes(MagnitudeVec a, MagnitudeVec b, MagnitudeVec c, MagnitudeVec d,
                                    float* maxima) {
  const hn::Repartition<std::int64_t, Magnitudes> pairs;
  const auto pairwise = [](MagnitudeVec x, MagnitudeVec y) HWY_ATTR {
    return hn::BitCast(
        hn::Repartition<std::int64_t, Magnitudes>(),
        hn::Max(hn::InterleaveLower(kMagnitudes, x, y), hn::InterleaveUpper(kMagnitudes, x, y)));
  };
  const auto ab = pairwise(a, b);
  const auto cd = pairwise(c, d);
  const auto all = hn::Max(hn::BitCast(kMagnitudes, hn::InterleaveLower(pairs, ab, cd)),
                           hn::BitCast(kMagnitudes, hn::InterleaveUpper(pairs, ab, cd)));
  const hn::CappedTag<float, 4> four;
  hn::StoreU(hn::BitCast(four, fold_to_four(kMagnitudes, all)), four, maxima);
}

// Processes four blocks at a time as long as they are whole vectors. Returns the number of elements
// processed.
template <NanInMaximum nan, typename T>
std::int64_t maxima_of_fours(const T* x, std::int64_t size, std::int64_t block, float* maxima) {
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(kFloats));
  if (block % lanes != 0) return 0;
  const std::int64_t vectors = block / lanes;
  std::int64_t i = 0;
  for (; i + 4 * block <= size; i += 4 * block) {
    const T* const first = x + i;
    store_largest_lanes(largest_of_vectors<nan>(first, vectors),
                        largest_of_vectors<nan>(first + block, vectors),
                        largest_of_vectors<nan>(first + 2 * block, vectors),
                        largest_of_vectors<nan>(first + 3 * block, vectors), maxima + i / block);
  }
  return i;
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
      const auto count = static_cast<std::int64_t>(size);
      const auto step = static_cast<std::int64_t>(block);
      std::int64_t begin = maxima_of_fours<policy>(elements, count, step, maxima);
      for (; begin < count; begin += step) {
        maxima[begin / step] = largest<policy>(elements + begin, std::min(step, count - begin));
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
