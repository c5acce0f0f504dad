// The device code that sends rows to experts and back, run on the host thread by thread. Copies
// must be equal bit for bit, sums within FP32's rounding of FP64 sums.
#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "core/kernels/cuda/permutation/row_exchange.cuh"
#include "tests/core/cuda/host_data.h"
#include "tests/core/cuda/host_grid.h"

namespace telens::testing {
namespace {

using cuda::NormShared;

constexpr std::int64_t kTokens = 5;
constexpr std::int64_t kSlots = 3;
constexpr std::int64_t kRows = 8;
// Includes unused slots at the start, in the middle and at the end, an index one past the last row,
// and a token without rows. Row 6 belongs to no token.
constexpr std::int32_t kPlaces[kTokens][kSlots] = {
    {3, 1, -1}, {-1, 0, 5}, {7, -1, 8}, {-1, -1, -1}, {4, 2, -1}};
constexpr float kWeights[kTokens][kSlots] = {
    {0.5F, 0.25F, 9}, {9, -1.5F, 0.125F}, {0.3F, 9, 9}, {9, 9, 9}, {0.7F, 0.1F, 9}};

cuda::RowPlaces places(bool weighted, std::int64_t slots = kSlots) {
  return {.places = &kPlaces[0][0],
          .tokens = kTokens,
          .slots = slots,
          .token_stride = kSlots,
          .slot_stride = 1,
          .rows = kRows,
          .weights = weighted ? &kWeights[0][0] : nullptr};
}

bool is_row(std::int32_t place) { return place >= 0 && place < kRows; }

template <typename Format>
using Codes = Aligned<typename Format::Bits>;

template <typename Format, typename Visit>
void for_each_place(const Visit& visit) {
  for (std::int64_t token = 0; token < kTokens; ++token) {
    for (std::int64_t slot = 0; slot < kSlots; ++slot) {
      if (is_row(kPlaces[token][slot])) visit(token, slot, kPlaces[token][slot]);
    }
  }
}

// Runs `kernel` with packs where the width allows them.
template <typename Format, typename Kernel>
void run(std::int64_t width, Order order, const Kernel& kernel) {
  constexpr int kWidth = cuda::kPackOf<typename Format::Bits>;
  run_grid<NormShared>(2, order, [&](const HostThread& thread, NormShared& shared) {
    if (width % kWidth == 0) {
      kernel.template operator()<kWidth>(thread, shared);
    } else {
      kernel.template operator()<1>(thread, shared);
    }
  });
}

template <typename Format>
void check_copies(std::int64_t width, Order order) {
  const auto x = codes_with_special_values<Format>(static_cast<std::size_t>(kTokens * width));
  Codes<Format> spread(static_cast<std::size_t>(kRows * width));
  const auto bytes = width * static_cast<std::int64_t>(sizeof(typename Format::Bits));
  const cuda::RowExchangeArguments arguments{places(false), x.data(), bytes, spread.data()};
  run_grid<NormShared>(2, order, [&](const HostThread& thread, NormShared&) {
    bytes % 16 == 0 ? cuda::spread_copies<16>(arguments, thread)
                    : cuda::spread_copies<1>(arguments, thread);
  });
  Codes<Format> expected(spread.size());
  for_each_place<Format>([&](std::int64_t token, std::int64_t, std::int64_t row) {
    std::copy_n(x.begin() + token * width, width, expected.begin() + row * width);
  });
  EXPECT_EQ(spread, expected) << get_name(Format::kId) << ", width " << width;

  // Copies the row of each token's first slot back.
  Codes<Format> back(x.size(), 1);
  const cuda::RowExchangeArguments home{places(false, 1), spread.data(), bytes, back.data()};
  run_grid<NormShared>(2, order, [&](const HostThread& thread, NormShared&) {
    bytes % 16 == 0 ? cuda::combine_copies<16>(home, thread)
                    : cuda::combine_copies<1>(home, thread);
  });
  for (std::int64_t token = 0; token < kTokens; ++token) {
    for (std::int64_t j = 0; j < width; ++j) {
      const auto at = static_cast<std::size_t>(token * width + j);
      const auto copied = is_row(kPlaces[token][0]) ? x[at] : typename Format::Bits{0};
      ASSERT_EQ(back[at], copied) << "token " << token << ", column " << j;
    }
  }
}

// Two FP32 roundings for each product or sum and one rounding to the format, whose subnormals in
// FP16 are multiples of 2^-24.
template <typename Format>
double bound(double magnitude) {
  const double unit = Format::kId == FormatId::fp32 ? 0 : std::ldexp(1.0, -Format::kMantissaBits);
  const double step = Format::kId == FormatId::fp16 ? std::ldexp(1.0, -24) : 1e-30;
  return magnitude * (unit + std::ldexp(1.0, -20)) + step;
}

template <typename Format>
void check_sums(std::int64_t width, Order order) {
  const auto x = random_codes<Format>(static_cast<std::size_t>(kRows * width));
  const auto value = [&](std::int64_t row, std::int64_t column) {
    return double{decode<Format>(x[static_cast<std::size_t>(row * width + column)])};
  };
  Codes<Format> sums(static_cast<std::size_t>(kTokens * width), 1);
  const cuda::RowExchangeArguments arguments{places(true), x.data(), width, sums.data()};
  run<Format>(width, order, [&]<int pack_width>(const HostThread& thread, NormShared&) {
    cuda::combine_sums<Format, pack_width>(arguments, thread);
  });
  std::vector<double> expected(sums.size());
  std::vector<double> magnitudes(sums.size());
  for_each_place<Format>([&](std::int64_t token, std::int64_t slot, std::int64_t row) {
    for (std::int64_t j = 0; j < width; ++j) {
      const double product = double{kWeights[token][slot]} * value(row, j);
      expected[static_cast<std::size_t>(token * width + j)] += product;
      magnitudes[static_cast<std::size_t>(token * width + j)] += std::fabs(product);
    }
  });
  for (std::size_t i = 0; i < sums.size(); ++i) {
    ASSERT_NEAR(decode<Format>(sums[i]), expected[i], bound<Format>(magnitudes[i]))
        << get_name(Format::kId) << ", element " << i;
  }
}

template <typename Format>
void check_gradients(std::int64_t width, Order order) {
  const auto grad = random_codes<Format>(static_cast<std::size_t>(kTokens * width), 1, 0, 2);
  const auto x = random_codes<Format>(static_cast<std::size_t>(kRows * width));
  Codes<Format> dx(x.size());
  const cuda::RowExchangeArguments arguments{places(true), grad.data(), width, dx.data()};
  float products[kTokens][kSlots];
  const cuda::RowProductsArguments of_products{places(false), x.data(), grad.data(), width,
                                               &products[0][0]};
  run<Format>(width, order, [&]<int pack_width>(const HostThread& thread, NormShared& shared) {
    cuda::spread_products<Format, pack_width>(arguments, thread);
    cuda::row_products<Format, pack_width>(of_products, thread, shared);
  });
  double expected[kTokens][kSlots] = {};
  double magnitude[kTokens][kSlots] = {};
  for_each_place<Format>([&](std::int64_t token, std::int64_t slot, std::int64_t row) {
    for (std::int64_t j = 0; j < width; ++j) {
      const double g = decode<Format>(grad[static_cast<std::size_t>(token * width + j)]);
      const auto at = static_cast<std::size_t>(row * width + j);
      const double scaled = double{kWeights[token][slot]} * g;
      ASSERT_NEAR(decode<Format>(dx[at]), scaled, bound<Format>(std::fabs(scaled)));
      const double product = g * decode<Format>(x[at]);
      expected[token][slot] += product;
      magnitude[token][slot] += std::fabs(product);
    }
  });
  for (std::int64_t token = 0; token < kTokens; ++token) {
    for (std::int64_t slot = 0; slot < kSlots; ++slot) {
      // A thread adds few products, and 13 levels of sums over threads follow: the error is below
      // 2^-18 of the sum of magnitudes.
      ASSERT_NEAR(products[token][slot], expected[token][slot],
                  std::ldexp(magnitude[token][slot], -18))
          << "token " << token << ", slot " << slot;
    }
  }
  for (std::int64_t j = 0; j < width; ++j) {
    ASSERT_EQ(dx[static_cast<std::size_t>(6 * width + j)], 0) << "a row that is no token's";
  }
}

// 2056 is a multiple of the pack size 8 that does not divide evenly among 256 threads.
constexpr std::int64_t kWidths[] = {2056, 77};

template <typename Visit>
void for_each_case(const Visit& visit) {
  for (const Order order : kOrders) {
    for (const std::int64_t width : kWidths) {
      visit.template operator()<BF16>(width, order);
      visit.template operator()<FP16>(width, order);
      visit.template operator()<FP32>(width, order);
    }
  }
}

TEST(RowExchangeDevice, copies_keep_every_bit_and_free_rows_are_unchanged) {
  for_each_case(
      []<typename Format>(std::int64_t width, Order order) { check_copies<Format>(width, order); });
}

TEST(RowExchangeDevice, sums_match_rounded_fp64) {
  for_each_case(
      []<typename Format>(std::int64_t width, Order order) { check_sums<Format>(width, order); });
}

TEST(RowExchangeDevice, gradients_match_rounded_fp64) {
  for_each_case([]<typename Format>(std::int64_t width, Order order) {
    check_gradients<Format>(width, order);
  });
}

}  // namespace
}  // namespace telens::testing
