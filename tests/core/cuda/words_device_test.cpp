// How elements move through registers, shared memory and grids: words, packs, tiles and waves.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <limits>
#include <set>
#include <vector>

#include "core/kernels/cuda/quantize/quantize_transpose.cuh"
#include "core/kernels/cuda/statistics/block_errors.cuh"
#include "core/kernels/cuda/statistics/statistics.cuh"
#include "core/kernels/cuda/statistics/statistics_block_casts.cuh"
#include "core/kernels/cuda/statistics/statistics_what_if.cuh"
#include "tests/core/cuda/host_data.h"
#include "tests/core/cuda/host_grid.h"

namespace telens::testing {
namespace {

template <typename Format>
void expect_words_hold_what_was_loaded() {
  using Bits = typename Format::Bits;
  const Aligned<Bits> x = codes_with_special_values<Format>(64);
  for (std::size_t first = 0; first < x.size(); first += 8) {
    const auto words = cuda::load_words<8>(x.data() + first);
    for (int i = 0; i < 8; ++i) {
      EXPECT_EQ(words.at(i), x[first + static_cast<std::size_t>(i)]);
      EXPECT_EQ(cuda::load_words<1>(x.data() + first + i).at(0), words.at(i));
    }
    Aligned<Bits> stored(8);
    cuda::store_words(stored.data(), words);
    EXPECT_TRUE(std::equal(stored.begin(), stored.end(), x.begin() + static_cast<int>(first)));
  }
}

TEST(Words, hold_elements_in_the_order_of_memory) {
  expect_words_hold_what_was_loaded<BF16>();
  expect_words_hold_what_was_loaded<FP16>();
  expect_words_hold_what_was_loaded<FP32>();
  const Aligned<std::uint8_t> bytes{1, 2, 3, 4, 5, 6, 7, 8};
  EXPECT_EQ(cuda::load_words<8>(bytes.data()).at(6), 7);
}

template <typename Format>
void expect_values_narrowed_one_by_one(const std::array<float, 8>& values) {
  float x[8];
  std::copy(values.begin(), values.end(), x);
  const auto words = cuda::narrow_all<Format>(x);
  for (int i = 0; i < 8; ++i) EXPECT_EQ(words.at(i), cuda::narrow<Format>(x[i])) << x[i];
}

TEST(Words, narrowing_several_values_keeps_the_signs_of_nans) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const float infinity = std::numeric_limits<float>::infinity();
  for (const auto& values : {std::array<float, 8>{1, -2, 3e38F, 1e-40F, -0.0F, 0, 65519, 65520},
                             {nan, 1, 2, 3, 4, 5, 6, -nan},
                             {-1, -nan, infinity, -infinity, nan, 7, 1.0000001F, -3}}) {
    expect_values_narrowed_one_by_one<BF16>(values);
    expect_values_narrowed_one_by_one<FP16>(values);
    expect_values_narrowed_one_by_one<FP32>(values);
  }
}

TEST(Packs, partial_tiles_use_packs_except_for_the_last_elements) {
  constexpr int kWidth = 8;
  for (const std::int64_t size : {5, 8, 2043, 8192, 8192 + 4099, 3 * 8192 + 17}) {
    const Aligned<std::uint16_t> x(static_cast<std::size_t>(size));
    std::vector<int> visits(x.size());
    std::int64_t alone = 0;
    run_grid<int>(2, Order::forward, [&](const HostThread& thread, int&) {
      cuda::for_each_pack<kWidth, 4, cuda::AsWords>(
          thread, x.data(), size,
          [&]<int width>(const cuda::Words<std::uint16_t, width>&, std::int64_t offset) {
            EXPECT_EQ(offset % width, 0);
            for (int i = 0; i < width; ++i) ++visits[static_cast<std::size_t>(offset + i)];
            alone += width == 1;
          });
    });
    EXPECT_THAT(visits, ::testing::Each(1)) << size;
    EXPECT_EQ(alone, size % kWidth) << size;
  }
}

// A warp stores 32 words at once: in one cycle if all are in different banks.
TEST(TransposeTile, words_of_a_warp_are_stored_in_32_different_banks) {
  for (int warp = 0; warp < cuda::kThreads / cuda::kWarp; ++warp) {
    for (int pass = 0; pass < cuda::detail::kPasses; ++pass) {
      std::set<int> banks;
      for (int lane = 0; lane < cuda::kWarp; ++lane) {
        const int thread = warp * cuda::kWarp + lane;
        const int row = pass * cuda::detail::kRowsOfPass +
                        thread / cuda::kThreadsAcross * cuda::detail::kRowsOfThread;
        const int column = thread % cuda::kThreadsAcross * cuda::kColumnsOfThread;
        const int word = cuda::detail::placed_word(column, row / 4);
        banks.insert((column * (cuda::kTransposeTile / 4) + word) % 32);
      }
      EXPECT_EQ(banks.size(), 32) << "warp " << warp << ", pass " << pass;
    }
  }
}

TEST(GridThatAddsUp, large_tensor_gives_one_wave_on_132_multiprocessors) {
  constexpr std::int64_t kMultiprocessors = 132;  // an H100 or H200 has as many
  constexpr std::int64_t kSide = std::int64_t{1} << 20;
  cuda::CastMatrix matrix{};
  matrix.codes.rows = matrix.x.rows = kSide;
  matrix.codes.columns = matrix.x.columns = kSide;
  struct Kernel {
    const char* name;
    std::int64_t blocks;
    int resident;
  };
  for (const Kernel& kernel :
       {Kernel{"statistics", cuda::statistics_blocks(kSide * kSide), cuda::kStatisticsResident},
        Kernel{"what-if", cuda::what_if_grid(kSide, kSide), cuda::kWhatIfResident},
        Kernel{"block casts", cuda::block_cast_grid(matrix), cuda::kBlockCastResident},
        Kernel{"copies", cuda::copies_grid(kSide, kSide), cuda::kCopiesResident}}) {
    EXPECT_LE(kernel.blocks, kMultiprocessors * kernel.resident) << kernel.name;
    EXPECT_GE(kernel.blocks, kMultiprocessors * kernel.resident * 95 / 100) << kernel.name;
  }
}

TEST(GridThatAddsUp, small_tensor_gives_one_block_per_piece_and_at_least_one) {
  EXPECT_EQ(cuda::grid_that_adds_up(0, 2), 1);
  EXPECT_EQ(cuda::grid_that_adds_up(7, 2), 7);
  EXPECT_EQ(cuda::grid_that_adds_up(256, 2), 256);
  EXPECT_EQ(cuda::grid_that_adds_up(257, 2), 256);
}

}  // namespace
}  // namespace telens::testing
