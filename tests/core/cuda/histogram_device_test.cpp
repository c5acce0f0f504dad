// The device code of histograms, run on the host thread by thread, against counting the elements
// one by one.
#include <gtest/gtest.h>

#include <vector>

#include "core/kernels/cuda/statistics/histogram.cuh"
#include "tests/core/cuda/host_data.h"
#include "tests/core/cuda/host_grid.h"

namespace telens::testing {
namespace {

using cuda::ExponentTables;

struct Nothing {};

template <typename Format, int width>
void expect_exponents(const Aligned<typename Format::Bits>& x, std::size_t offset, Order order) {
  std::vector<std::int64_t> expected(kExponentBins, 5);  // counts are added to
  std::vector<std::int64_t> actual = expected;
  for (std::size_t i = offset; i < x.size(); ++i) ++expected[get_exponent_bin<Format>(x[i])];
  run_grid<ExponentTables>(2, order, [&](const HostThread& thread, ExponentTables& shared) {
    cuda::exponent_histogram<Format, width>(
        {x.data() + offset, static_cast<std::int64_t>(x.size() - offset), actual.data()}, thread,
        shared);
  });
  EXPECT_EQ(actual, expected) << get_name(Format::kId);
}

template <typename Format>
void expect_exponents_in_packs_and_one_by_one() {
  constexpr int kWidth = cuda::kPackOf<typename Format::Bits>;
  const auto x = codes_with_special_values<Format>(256 * 8 * 4 + 1237);
  for (const Order order : kOrders) expect_exponents<Format, kWidth>(x, 0, order);
  expect_exponents<Format, 1>(x, 1, Order::shuffled);
}

TEST(HistogramDevice, exponents_are_counted_once_each) {
  expect_exponents_in_packs_and_one_by_one<BF16>();
  expect_exponents_in_packs_and_one_by_one<FP16>();
  expect_exponents_in_packs_and_one_by_one<FP32>();
}

TEST(HistogramDevice, codes_are_counted_once_each) {
  const auto x = codes_with_special_values<BF16>(256 * 8 * 4 + 1237);
  std::vector<std::int64_t> expected(kCodeBins);
  std::vector<std::int64_t> actual(kCodeBins);
  for (const std::uint16_t code : x) ++expected[code];
  run_grid<Nothing>(2, Order::shuffled, [&](const HostThread& thread, Nothing&) {
    cuda::code_histogram<8>({x.data(), static_cast<std::int64_t>(x.size()), actual.data()}, thread);
  });
  EXPECT_EQ(actual, expected);
}

}  // namespace
}  // namespace telens::testing
