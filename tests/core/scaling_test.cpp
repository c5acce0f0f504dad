// The operators from amaxes to scales against their definitions, and their Meta kernels.
#include "core/ops/scaling.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "core/base/error.h"
#include "core/formats/formats.h"

namespace telens {
namespace {

using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kFp8Max = E4M3::kMax;

at::Tensor on_meta(at::IntArrayRef sizes, at::ScalarType dtype = at::kFloat) {
  return at::empty(sizes, at::device(at::kMeta).dtype(dtype));
}

TEST(ScaleFromAmax, is_the_largest_code_over_the_amax) {
  const at::Tensor amax = at::tensor({2.0F, 448.0F, 0.0F, kInf, kNan, 1e-44F});
  const at::Tensor scale = ops::scale_from_amax(amax, kFp8Max, 0, false);
  EXPECT_TRUE(at::equal(scale, at::tensor({224.0F, 1.0F, 1.0F, 1.0F, 1.0F, FP32::kMax})));
  EXPECT_EQ(ops::scale_from_amax(at::tensor({3.0F}), kFp8Max, 0, true).item<float>(), 128.0F);
  EXPECT_EQ(ops::scale_from_amax(at::tensor({1.0F}), kFp8Max, 4, false).item<float>(), 112.0F);
}

TEST(AmaxOfHistory, takes_the_largest_or_newest_amax_per_slot) {
  const at::Tensor history = at::tensor({1.0F, 5.0F, 0.0F, 3.0F, 2.0F, kNan}).view({2, 3});
  const at::Tensor largest = ops::amax_of_history(history, "max");
  EXPECT_TRUE(at::equal(largest.slice(0, 0, 2), at::tensor({3.0F, 5.0F})));
  EXPECT_TRUE(std::isnan(largest[2].item<float>())) << "a NaN never vanishes in a maximum";
  EXPECT_TRUE(
      at::equal(ops::amax_of_history(history, "most_recent"), at::tensor({1.0F, 5.0F, 0.0F})));
}

TEST(UpdateScale, keeps_a_scale_whose_amax_is_zero_or_not_finite) {
  const at::Tensor amax = at::tensor({2.0F, 0.0F, kInf, kNan, 1e-44F});
  const at::Tensor scale = at::full({5}, 7.0F);
  ops::update_scale(amax, scale, at::full({5}, kFp8Max), 1, false);
  EXPECT_TRUE(at::equal(scale, at::tensor({112.0F, 7.0F, 7.0F, 7.0F, FP32::kMax / 2})));
  ops::update_scale(at::full({5}, 3.0F), scale, at::full({5}, kFp8Max), 2, true);
  EXPECT_TRUE(at::equal(scale, at::full({5}, 32.0F)));
}

TEST(AdvanceHistory, drops_the_oldest_row_and_begins_one_of_zeros) {
  const at::Tensor history = at::arange(6).to(at::kFloat).view({3, 2});
  ops::advance_history(history);
  EXPECT_TRUE(at::equal(history, at::tensor({0.0F, 0.0F, 0.0F, 1.0F, 2.0F, 3.0F}).view({3, 2})));
}

TEST(UpdateWindows, take_and_leave_the_columns_of_a_larger_history) {
  for (const std::int64_t length : {1, 2, 40}) {
    for (const char* algorithm : {"max", "most_recent"}) {
      const at::Tensor whole = at::rand({length, 7}), scales = at::rand({7});
      const at::Tensor before = whole.clone();
      const auto columns = [](const at::Tensor& of) { return of.narrow(of.dim() - 1, 3, 3); };
      const at::Tensor history = columns(whole).clone(), scale = columns(scales).clone();
      const at::Tensor amax = ops::amax_of_history(columns(whole), algorithm);
      EXPECT_TRUE(at::equal(amax, ops::amax_of_history(history, algorithm)));
      const ops::WindowFormula formula{.algorithm = algorithm};
      ops::update_windows({{columns(whole)}, {columns(scales)}, {kFp8Max}}, formula);
      ops::update_windows({{history}, {scale}, {kFp8Max}}, formula);
      EXPECT_TRUE(at::equal(columns(whole), history)) << length;
      EXPECT_TRUE(at::equal(columns(scales), scale)) << length;
      EXPECT_TRUE(at::equal(whole.narrow(1, 0, 3), before.narrow(1, 0, 3))) << length;
      EXPECT_TRUE(at::equal(whole.narrow(1, 6, 1), before.narrow(1, 6, 1))) << length;
    }
  }
}

TEST(ScalingOperators, have_the_shapes_of_their_results_on_meta) {
  const at::Tensor scale = ops::scale_from_amax(on_meta({3, 2}), kFp8Max, 0, false);
  EXPECT_TRUE(scale.is_meta());
  EXPECT_EQ(scale.sizes(), at::IntArrayRef({3, 2}));
  EXPECT_EQ(scale.scalar_type(), at::kFloat);
  const at::Tensor amax = ops::amax_of_history(on_meta({16, 3}), "max");
  EXPECT_TRUE(amax.is_meta());
  EXPECT_EQ(amax.sizes(), at::IntArrayRef({3}));
  EXPECT_EQ(amax.scalar_type(), at::kFloat);
  ops::update_scale(on_meta({3}), on_meta({3}), on_meta({3}), 0, false);
  ops::advance_history(on_meta({16, 3}));
}

// The CPU and the Meta kernels refuse the same arguments.
TEST(ScalingOperators, reject_wrong_shapes_on_every_device) {
  for (const at::DeviceType device : {at::kCPU, at::kMeta}) {
    const auto make = [&](at::IntArrayRef sizes, at::ScalarType dtype = at::kFloat) {
      return at::zeros(sizes, at::device(device).dtype(dtype));
    };
    EXPECT_THAT([&] { ops::amax_of_history(make({4}), "max"); },
                ThrowsMessage<ShapeError>(
                    HasSubstr("amax_of_history: amax_history has 1 dimensions; expected [length")));
    EXPECT_THAT(
        [&] {
          ops::amax_of_history(make({4, 2}), "mean");
        },
        ThrowsMessage<UsageError>(HasSubstr("algorithm \"mean\"; expected \"max\" or")));
    EXPECT_THAT(
        [&] {
          ops::advance_history(make({4, 2}, at::kDouble));
        },
        ThrowsMessage<ShapeError>(HasSubstr("advance_history: amax_history has dtype "
                                            "Double; expected a contiguous Float")));
    EXPECT_THAT(
        [&] {
          ops::advance_history(make({4, 2}).t());
        },
        ThrowsMessage<ShapeError>(HasSubstr("is not contiguous")));
    EXPECT_THAT([&] { ops::update_scale(make({2}), make({3}), make({3}), 0, false); },
                ThrowsMessage<ShapeError>(HasSubstr("update_scale: 2 amaxes, 3 scales, 3 maxima")));
  }
}

}  // namespace
}  // namespace telens
