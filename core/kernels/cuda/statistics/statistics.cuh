// Device code. Statistics of a tensor. core/ops/statistics_layout.h defines them.
#pragma once

#include "core/kernels/cuda/conversions.cuh"
#include "core/kernels/cuda/packs.cuh"
#include "core/kernels/cuda/statistics/statistics_casts.cuh"
#include "core/kernels/cuda/statistics/sums.cuh"
#include "core/ops/statistics_layout.h"

namespace telens::cuda {

// ---- All statistics in one read.
//
// A thread reads 32 elements of a chunk at a time into registers. Integer extremes of their codes
// show if they are ordinary: no NaN, no infinity, and in a range whose squares FP32 can sum. For
// ordinary elements, sums over the 32 are FP32 without a mask. Zeros, subnormals, underflows and
// overflows are counted only if the extremes show that there are any. Other elements are read
// again, from the cache, by a loop that processes every element in double. The sums of groups of 32
// are accumulated in double.

// Casts per launch: their accumulators fill 36 KB of shared memory. More casts need another read.
inline constexpr int kCastsOfLaunch = 6;

// Resident thread blocks per multiprocessor.
inline constexpr int kStatisticsResident = blocks_with(80);

constexpr std::int64_t statistics_blocks(std::int64_t size) {
  return grid_that_adds_up((size + kStatisticsChunk - 1) / kStatisticsChunk, kStatisticsResident);
}

// Words of OnePassSums followed by `casts` CastSums: the output of one thread block.
TELENS_HOST_DEVICE constexpr std::int64_t part_words(std::int64_t casts) {
  return kOnePassWords + casts * kCastSumsWords;
}

struct StatisticsArguments {
  const void* x;  // aligned to 16 bytes
  std::int64_t size;
  StatisticsCast casts[kCastsOfLaunch];
  int cast_count;
  std::int64_t* parts;  // [statistics_blocks(size), part_words(cast_count)]
};

struct MergeStatisticsShared {
  OnePassSums tensor[kThreads / kWarp];
  CastSums cast[kThreads / kWarp];
};

struct StatisticsShared {
  CastThresholds thresholds[kCastsOfLaunch];
  CastAccumulator casts[kCastsOfLaunch][kThreads];
  MergeStatisticsShared of_warp;
};

namespace detail {

inline constexpr int kElementsOfThread = static_cast<int>(kStatisticsChunk) / kThreads;  // 32

// Range of magnitudes for which FP32 sums of squares neither overflow nor lose a noticeable part.
// core/kernels/cpu/statistics/statistics_range.cpp derives it for whole chunks.
inline constexpr float kLargestForFp32 = 0x1p56F;
inline constexpr float kSmallestForFp32 = 0x1p-50F;
// If less of the squares remains, rounding errors of FP32 sums would affect the variance.
inline constexpr float kCancelledForFp32 = 1.0F / 16;
// No squared error underflows if all elements are above it.
inline constexpr float kSmallestForErrors = 0x1p-40F;

// The statistics of a thread's elements.
template <typename Format>
struct ThreadStatistics {
  CodeExtremes<Format> extremes;  // of the elements that are not NaN
  bool has_numbers = false;       // there is such an element
  std::int64_t numel = 0;
  std::int64_t nan = 0;
  std::int64_t posinf = 0;
  std::int64_t neginf = 0;
  std::int64_t zeros = 0;
  std::int64_t subnormals = 0;
  double sum = 0;
  double l1 = 0;
  double sum_squares = 0;
  double within = 0;   // sum over groups of elements of (x - mean of the group)^2
  double between = 0;  // sum over groups of (sum of the group)^2 / elements of the group

  TELENS_DEVICE OnePassSums finish() const {
    OnePassSums sums;
    sums.numel = numel;
    sums.nan = nan;
    sums.posinf = posinf;
    sums.neginf = neginf;
    sums.zeros = zeros;
    sums.subnormals = subnormals;
    if (has_numbers) {
      using Bits = typename Format::Bits;
      sums.min = static_cast<double>(widen<Format>(extremes.min())) + 0.0;  // -0 becomes +0
      sums.max = static_cast<double>(widen<Format>(extremes.max())) + 0.0;
      const std::uint32_t smallest = extremes.smallest_nonzero();
      if (smallest <= Format::kTopExponentCode) {
        sums.smallest_nonzero = widen<Format>(static_cast<Bits>(smallest));
      }
    }
    sums.sum = sum;
    sums.l1 = l1;
    sums.sum_squares = sum_squares;
    const auto finite = static_cast<double>(finite_count(sums));
    if (finite > 0) {
      const double means = between - sum * sum / finite;
      sums.m2 = within + (means > 0 ? means : 0);
    }
    return sums;
  }
};

// Adds a group of elements; `at(i)` returns the code of element i. Processes every element.
template <typename Format, typename At>
TELENS_DEVICE void add_any(ThreadStatistics<Format>& statistics, int count, const At& at) {
  double sum = 0;
  std::int64_t finite = 0;
  for (int i = 0; i < count; ++i) {
    const std::uint32_t code = at(i);
    const std::uint32_t magnitude = code & Format::kMagnitudeMask;
    if (magnitude > Format::kTopExponentCode) {
      ++statistics.nan;
      continue;
    }
    statistics.has_numbers = true;
    statistics.extremes.add(in_every_lane<Format>(code));
    if (magnitude == Format::kTopExponentCode) {
      ++((code & Format::kSignMask) != 0 ? statistics.neginf : statistics.posinf);
      continue;
    }
    statistics.zeros += magnitude == 0;
    statistics.subnormals += magnitude > 0 && magnitude < Format::kSmallestNormalCode;
    const double x = widen<Format>(static_cast<typename Format::Bits>(code));
    sum += x;
    statistics.l1 += x < 0 ? -x : x;
    statistics.sum_squares += x * x;
    ++finite;
  }
  statistics.numel += count;
  if (finite == 0) return;
  const double mean = sum / static_cast<double>(finite);
  for (int i = 0; i < count; ++i) {
    const std::uint32_t code = at(i);
    if ((code & Format::kMagnitudeMask) >= Format::kTopExponentCode) continue;
    const double deviation = widen<Format>(static_cast<typename Format::Bits>(code)) - mean;
    statistics.within += deviation * deviation;
  }
  statistics.sum += sum;
  statistics.between += sum * mean;
}

template <typename Format, typename Target, typename At>
TELENS_DEVICE double exact_squared_error(const CastThresholds& cast, int count, const At& at) {
  double sum = 0;
  for (int i = 0; i < count; ++i) {
    const double error =
        exact_cast_error<Target>(widen<Format>(static_cast<typename Format::Bits>(at(i))), cast);
    sum += error * error;
  }
  return sum;
}

// Adds a cast of a group. Processes every element.
template <typename Format, typename At>
TELENS_DEVICE void cast_any(const CastThresholds& cast, CastAccumulator& sums, int count,
                            const At& at) {
  for (int i = 0; i < count; ++i) {
    const std::uint32_t magnitude = at(i) & Format::kMagnitudeMask;
    const bool is_number = magnitude <= Format::kTopExponentCode;
    sums.underflows += magnitude > 0 && magnitude < cast.first_nonzero;
    sums.overflows += is_number && magnitude >= cast.first_overflow;
    sums.saturated += is_number && magnitude >= cast.first_clipped;
  }
  sums.squared_error += cast.format == FormatId::e4m3
                            ? exact_squared_error<Format, E4M3>(cast, count, at)
                            : exact_squared_error<Format, E5M2>(cast, count, at);
}

// The 32 elements of a thread as words.
template <typename Format>
struct Group {
  static constexpr int kWords = kElementsOfThread / kLanes<Format>;

  std::uint32_t words[kWords];

  TELENS_DEVICE std::uint32_t count_below(std::uint32_t limit) const {
    std::uint32_t count = 0;
    TELENS_UNROLL
    for (int i = 0; i < kWords; ++i) {
      count += static_cast<std::uint32_t>(cuda::count_below<Format>(words[i], limit));
    }
    return count;
  }

  // Calls visit(x) for every value.
  template <typename Visit>
  TELENS_DEVICE void for_each(const Visit& visit) const {
    TELENS_UNROLL
    for (int i = 0; i < kWords; ++i) {
      TELENS_UNROLL
      for (int lane = 0; lane < kLanes<Format>; ++lane) visit(widen_lane<Format>(words[i], lane));
    }
  }
};

template <typename Format>
TELENS_DEVICE std::uint32_t get_code(float magnitude) {
  return encode<Format>(magnitude, Saturation::saturating);
}

// Adds an ordinary group. Returns false, without any change, if FP32 cannot hold its sums.
template <typename Format>
TELENS_DEVICE bool add_ordinary(ThreadStatistics<Format>& statistics, const Group<Format>& group,
                                const CodeExtremes<Format>& extremes, std::uint32_t zeros) {
  float sum = 0;
  float l1 = 0;
  float squares = 0;
  group.for_each([&](float x) {
    sum += x;
    l1 += std::fabs(x);
    squares = multiply_add(x, x, squares);
  });
  const double mean_square = static_cast<double>(sum) * sum / kElementsOfThread;
  const double within = squares - mean_square;
  if (within < kCancelledForFp32 * squares) return false;
  statistics.has_numbers = true;
  statistics.extremes.merge(extremes);
  statistics.numel += kElementsOfThread;
  statistics.zeros += zeros;
  if (extremes.smallest_nonzero() < Format::kSmallestNormalCode) {
    statistics.subnormals += group.count_below(Format::kSmallestNormalCode) - zeros;
  }
  statistics.sum += sum;
  statistics.l1 += l1;
  statistics.sum_squares += squares;
  statistics.within += within;
  statistics.between += mean_square;
  return true;
}

// Adds a cast of a group whose squares fit FP32. Returns false, without any change, if the squares
// of its errors do not.
template <typename Format, typename Target>
TELENS_DEVICE bool cast_ordinary(const CastThresholds& cast, CastAccumulator& sums,
                                 const Group<Format>& group, const CodeExtremes<Format>& extremes,
                                 std::uint32_t zeros) {
  float squares = 0;
  group.for_each([&](float x) {
    const float error = cast_error<Target>(x, cast);
    squares = multiply_add(error, error, squares);
  });
  const std::uint32_t smallest = extremes.smallest_nonzero();
  if (squares < kNoticeableError && smallest < get_code<Format>(kSmallestForErrors)) {
    return false;
  }
  sums.squared_error += squares;
  if (smallest < cast.first_nonzero) {
    sums.underflows += group.count_below(cast.first_nonzero) - zeros;
  }
  const std::uint32_t amax = extremes.amax();
  if (amax >= cast.first_overflow) {
    sums.overflows += kElementsOfThread - group.count_below(cast.first_overflow);
  }
  if (amax >= cast.first_clipped) {
    sums.saturated += kElementsOfThread - group.count_below(cast.first_clipped);
  }
  return true;
}

// Adds a thread's 32 elements of the chunk that starts at `chunk`.
template <typename Format>
TELENS_DEVICE void add_group(ThreadStatistics<Format>& statistics, int casts,
                             const typename Format::Bits* chunk, int index,
                             StatisticsShared& shared) {
  using Bits = typename Format::Bits;
  constexpr int kWidth = kPackOf<Bits>;
  constexpr int kPacks = kElementsOfThread / kWidth;
  Group<Format> group;
  TELENS_UNROLL
  for (int pack = 0; pack < kPacks; ++pack) {
    const auto words = load_pack<4>(
        reinterpret_cast<const std::uint32_t*>(chunk + (pack * kThreads + index) * kWidth));
    TELENS_UNROLL
    for (int i = 0; i < 4; ++i) group.words[4 * pack + i] = words.values[i];
  }
  CodeExtremes<Format> extremes;
  TELENS_UNROLL
  for (int i = 0; i < Group<Format>::kWords; ++i) extremes.add(group.words[i]);

  const auto at = [&](int i) {
    return std::uint32_t{chunk[(i / kWidth * kThreads + index) * kWidth + i % kWidth]};
  };
  const std::uint32_t amax = extremes.amax();
  const bool fits = amax <= get_code<Format>(kLargestForFp32) &&
                    (amax >= get_code<Format>(kSmallestForFp32) || amax == 0);
  const std::uint32_t zeros = fits && extremes.has_zero() ? group.count_below(1) : 0;
  if (!fits || !add_ordinary(statistics, group, extremes, zeros)) {
    add_any(statistics, kElementsOfThread, at);
  }
  for (int i = 0; i < casts; ++i) {
    const CastThresholds& cast = shared.thresholds[i];
    CastAccumulator& sums = shared.casts[i][index];
    const bool done =
        fits && (cast.format == FormatId::e4m3
                     ? cast_ordinary<Format, E4M3>(cast, sums, group, extremes, zeros)
                     : cast_ordinary<Format, E5M2>(cast, sums, group, extremes, zeros));
    if (!done) cast_any<Format>(cast, sums, kElementsOfThread, at);
  }
}

}  // namespace detail

// Writes the statistics of the block's chunks to its row of `parts`.
template <typename Format, typename Thread>
TELENS_DEVICE void statistics(const StatisticsArguments& arguments, const Thread& thread,
                              StatisticsShared& shared) {
  using Bits = typename Format::Bits;
  const int casts = arguments.cast_count;
  find_thresholds<Format>(arguments.casts, casts, thread, shared.thresholds);
  for (int i = 0; i < casts; ++i) shared.casts[i][thread.index()] = {};
  thread.sync();

  detail::ThreadStatistics<Format> mine;
  const auto* x = static_cast<const Bits*>(arguments.x);
  for (std::int64_t first = thread.block() * kStatisticsChunk; first < arguments.size;
       first += thread.blocks() * kStatisticsChunk) {
    const std::int64_t left = arguments.size - first;
    if (left >= kStatisticsChunk) {
      detail::add_group(mine, casts, x + first, thread.index(), shared);
    } else {  // the last, incomplete chunk
      const std::int64_t threads_with_more = left % kThreads;
      const int count = static_cast<int>(left / kThreads) + (thread.index() < threads_with_more);
      const auto at = [&](int i) {
        return std::uint32_t{x[first + std::int64_t{i} * kThreads + thread.index()]};
      };
      detail::add_any(mine, count, at);
      for (int i = 0; i < casts; ++i) {
        detail::cast_any<Format>(shared.thresholds[i], shared.casts[i][thread.index()], count, at);
      }
    }
  }

  std::int64_t* part = arguments.parts + thread.block() * part_words(casts);
  const OnePassSums tensor = merge_block(thread, mine.finish(), shared.of_warp.tensor);
  if (thread.index() == 0) *reinterpret_cast<OnePassSums*>(part) = tensor;
  for (int i = 0; i < casts; ++i) {
    const CastThresholds& cast = shared.thresholds[i];
    const CastAccumulator& of_thread = shared.casts[i][thread.index()];
    CastSums sums = of_thread.finish();
    sums.numel = mine.numel;
    if (mine.numel > 0) sums.scale_inv_min = sums.scale_inv_max = cast.signed_scale_inv;
    const CastSums of_block = merge_block(thread, sums, shared.of_warp.cast);
    if (thread.index() == 0) *reinterpret_cast<CastSums*>(part + part_words(i)) = of_block;
  }
}

struct MergeStatisticsArguments {
  const std::int64_t* parts;  // [count, part_words(cast_count)]
  std::int64_t count;
  int cast_count;
  std::int64_t* tensor;  // TensorSums without moments; nullptr if not requested
  std::int64_t* casts;   // consecutive CastSums
  bool accumulate;       // true: adds to the result; false: replaces it
};

// One block merges the parts.
template <typename Thread>
TELENS_DEVICE void merge_statistics(const MergeStatisticsArguments& arguments, const Thread& thread,
                                    MergeStatisticsShared& shared) {
  const std::int64_t words = part_words(arguments.cast_count);
  const auto merge_column = [&]<typename Sums>(std::int64_t offset, std::int64_t* result,
                                               Sums* of_warp) {
    const auto part = [&](std::int64_t i) -> const Sums& {
      return *reinterpret_cast<const Sums*>(arguments.parts + i * words + offset);
    };
    merge_parts(thread, arguments.count, part, *reinterpret_cast<Sums*>(result),
                arguments.accumulate, of_warp);
  };
  if (arguments.tensor != nullptr) {
    merge_column.template operator()<OnePassSums>(0, arguments.tensor, shared.tensor);
    if (!arguments.accumulate && thread.index() == 0) {
      *reinterpret_cast<CentralMoments*>(arguments.tensor + kOnePassWords) = {};
    }
  }
  for (int i = 0; i < arguments.cast_count; ++i) {
    merge_column.template operator()<CastSums>(part_words(i), arguments.casts + i * kCastSumsWords,
                                               shared.cast);
  }
}

// ---- The central moments of a tensor.

struct CentralMomentsArguments {
  const void* x;
  std::int64_t size;
  CentralMoments* parts;  // one per thread block
};

constexpr std::int64_t central_moments_blocks(std::int64_t size) {
  constexpr int kResident = 2;  // resident thread blocks per multiprocessor
  return grid_that_adds_up((size + kStatisticsChunk - 1) / kStatisticsChunk, kResident);
}

namespace detail {

// Computes the moments of `count` elements in FP64. `at(i)` returns the code of element i and is
// called twice for each.
template <typename Format, typename At>
TELENS_DEVICE CentralMoments compute_moments(int count, const At& at) {
  const auto is_finite = [&](int i) {
    return (at(i) & Format::kMagnitudeMask) < Format::kTopExponentCode;
  };
  const auto value = [&](int i) {
    return static_cast<double>(widen<Format>(static_cast<typename Format::Bits>(at(i))));
  };
  double sum = 0;
  std::int64_t finite = 0;
  for (int i = 0; i < count; ++i) {
    if (!is_finite(i)) continue;
    sum += value(i);
    ++finite;
  }
  if (finite == 0) return {};
  const double center = sum / static_cast<double>(finite);
  CenteredSums sums;
  for (int i = 0; i < count; ++i) {
    if (is_finite(i)) sums.add(value(i) - center);
  }
  return moments_around(center, finite, sums);
}

}  // namespace detail

// Writes the moments of the block's chunks to its element of `parts`.
template <typename Format, typename Thread>
TELENS_DEVICE void central_moments(const CentralMomentsArguments& arguments, const Thread& thread,
                                   MergeShared<CentralMoments>& shared) {
  const auto* x = static_cast<const typename Format::Bits*>(arguments.x);
  CentralMoments moments;
  for (std::int64_t first = thread.block() * kStatisticsChunk; first < arguments.size;
       first += thread.blocks() * kStatisticsChunk) {
    const std::int64_t left = arguments.size - first;
    const std::int64_t size = left < kStatisticsChunk ? left : kStatisticsChunk;
    const int count = static_cast<int>(size / kThreads) + (thread.index() < size % kThreads);
    merge(moments, detail::compute_moments<Format>(count, [&](int i) {
            return std::uint32_t{x[first + std::int64_t{i} * kThreads + thread.index()]};
          }));
  }
  moments = merge_block(thread, moments, shared.of_warp);
  if (thread.index() == 0) arguments.parts[thread.block()] = moments;
}

}  // namespace telens::cuda
