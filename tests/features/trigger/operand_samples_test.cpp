// Samples of GEMM operands: from which iterations and micro-batches they are taken, and how many
// are kept.
#include "features/trigger/operand_samples.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>

#include <algorithm>
#include <set>

#include "core/torch_compat.h"

namespace telens::features {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

constexpr std::string_view kLayer = "layers.0.fc1";

OperandSample only(OperandSamples& samples) {
  const OperandSamples::Kept kept = samples.take();
  EXPECT_EQ(kept.iterations.size(), 1U);
  EXPECT_EQ(kept.iterations.front().samples.size(), 1U);
  return kept.iterations.front().samples.begin()->second;
}

OperandSample sampled(const at::Tensor& operand, std::int64_t elements,
                      std::string_view layer = kLayer, std::int64_t iteration = 3,
                      TensorName tensor = TensorName::activation) {
  OperandSamples samples(elements, 4);
  samples.add(layer, tensor, iteration, operand);
  return only(samples);
}

TEST(OperandSamples, hold_the_values_at_their_places_in_any_layout_and_dtype) {
  for (const at::ScalarType dtype : {at::kBFloat16, at::kHalf, at::kFloat}) {
    const at::Tensor x = at::arange(6 * 35, at::kFloat).sub(100).reshape({6, 5, 7}).to(dtype);
    for (const at::Tensor& operand : {x, x.transpose(0, 2)}) {
      const OperandSample sample = sampled(operand, 32);
      ASSERT_EQ(sample.positions.size(), 32U);
      EXPECT_EQ(sample.columns, operand.size(-1));
      const at::Tensor flat = operand.contiguous().flatten();
      for (std::size_t i = 0; i < sample.positions.size(); ++i) {
        const auto at_i = static_cast<std::int64_t>(i);
        EXPECT_TRUE(at::equal(to_torch(sample.values)[at_i], flat[sample.positions[i]])) << i;
      }
    }
  }
}

TEST(OperandSamples, respect_the_memory_limit_and_count_dropped_samples) {
  constexpr std::size_t kBytesOfOne = 10 * (8 + 4);
  OperandSamples samples(10, 100, 5 * kBytesOfOne);
  for (std::int64_t iteration = 0; iteration < 4; ++iteration) {
    for (const char* layer : {"a", "b"}) {
      samples.add(layer, TensorName::activation, iteration, at::ones({100}));
    }
    samples.end_iteration(iteration);
  }
  const OperandSamples::Kept kept = samples.take();
  ASSERT_EQ(kept.iterations.size(), 2U) << "the newest";
  EXPECT_EQ(kept.iterations.front().iteration, 2);
  EXPECT_EQ(kept.left_out, 4);

  for (int layer = 0; layer < 8; ++layer) {
    samples.add(std::to_string(layer), TensorName::activation, 9, at::ones({100}));
  }
  const OperandSamples::Kept of_one_iteration = samples.take();
  ASSERT_EQ(of_one_iteration.iterations.size(), 1U);
  EXPECT_EQ(of_one_iteration.iterations.front().samples.size(), 5U);
  EXPECT_EQ(of_one_iteration.left_out, 3);
}

TEST(OperandSamples, are_spread_over_the_tensor) {
  const OperandSample sample = sampled(at::zeros({100, 100}), 50);
  const std::set<std::int64_t> places(sample.positions.begin(), sample.positions.end());
  EXPECT_EQ(places.size(), 50U);
  for (std::size_t i = 0; i < sample.positions.size(); ++i) {
    EXPECT_EQ(sample.positions[i] / 200, static_cast<std::int64_t>(i));
  }
  std::set<std::int64_t> columns;
  for (const std::int64_t place : places) columns.insert(place % sample.columns);
  EXPECT_GT(columns.size(), 25U);
}

TEST(OperandSamples, take_all_of_a_small_tensor_and_nothing_of_an_empty_one) {
  EXPECT_THAT(sampled(at::zeros({1, 3}), 8).positions, ElementsAre(0, 1, 2));
  OperandSamples samples(8, 1);
  samples.add(kLayer, TensorName::activation, 0, at::zeros({0, 3}));
  EXPECT_THAT(samples.take().iterations, IsEmpty());
}

TEST(OperandSamples, are_independent_of_the_random_state_of_torch) {
  const at::Tensor x = at::zeros({100, 100});
  at::manual_seed(1);
  const auto places = sampled(x, 16).positions;
  const at::Tensor after = at::rand({4});
  at::manual_seed(1);
  EXPECT_TRUE(at::equal(after, at::rand({4})));
  at::manual_seed(2);
  EXPECT_EQ(sampled(x, 16).positions, places);
  EXPECT_NE(sampled(x, 16, "layers.1.fc1").positions, places);
  EXPECT_NE(sampled(x, 16, kLayer, 4).positions, places);
  EXPECT_NE(sampled(x, 16, kLayer, 3, TensorName::gradient).positions, places);
}

TEST(OperandSamples, micro_batches_have_equal_chances_except_for_weights) {
  constexpr int kMicroBatches = 4, kElements = 4000;
  OperandSamples samples(kElements, 1);
  for (int i = 0; i < kMicroBatches; ++i) {
    const at::Tensor operand = at::full({100, 100}, i, at::kFloat);
    samples.add(kLayer, TensorName::activation, 0, operand);
    samples.add(kLayer, TensorName::weight, 0, operand);
  }
  auto kept = samples.take().iterations.front().samples;
  const at::Tensor of_weight = to_torch(kept[{std::string(kLayer), TensorName::weight}].values);
  EXPECT_EQ(of_weight.count_nonzero().item<std::int64_t>(), 0);
  const at::Tensor values = to_torch(kept[{std::string(kLayer), TensorName::activation}].values);
  for (int i = 0; i < kMicroBatches; ++i) {
    const auto count = values.eq(i).sum().item<std::int64_t>();
    // A quarter of 4000; the standard deviation is 27, of which five are allowed.
    EXPECT_NEAR(static_cast<double>(count), 1000, 137) << i;
  }
}

TEST(OperandSamples, stay_with_their_places_when_a_later_micro_batch_is_smaller) {
  OperandSamples samples(64, 1);
  const at::Tensor first = at::arange(1000, at::kFloat).reshape({100, 10});
  for (const at::Tensor& operand : {first, first.narrow(0, 0, 3)}) {
    samples.add(kLayer, TensorName::activation, 0, operand);
  }
  const OperandSample sample = only(samples);
  for (std::size_t i = 0; i < sample.positions.size(); ++i) {
    EXPECT_EQ(to_torch(sample.values)[static_cast<std::int64_t>(i)].item<float>(),
              static_cast<float>(sample.positions[i]));
  }
  EXPECT_LT(std::ranges::count_if(sample.positions, [](std::int64_t p) { return p >= 30; }), 60);
}

TEST(OperandSamples, keep_only_the_last_iterations) {
  OperandSamples samples(2, 3);
  const auto run = [&](std::int64_t iteration) {
    samples.add(kLayer, TensorName::activation, iteration, at::zeros({4, 4}));
    samples.end_iteration(iteration);
  };
  const auto iterations = [&] {
    std::vector<std::int64_t> numbers;
    for (const auto& each : samples.take().iterations) numbers.push_back(each.iteration);
    return numbers;
  };
  for (int i = 0; i < 6; ++i) run(i);
  EXPECT_THAT(iterations(), ElementsAre(3, 4, 5));
  EXPECT_THAT(iterations(), IsEmpty());
  for (const int i : {100, 103}) run(i);
  EXPECT_THAT(iterations(), ElementsAre(103));
  for (const int i : {8, 9, 1, 2}) run(i);  // they began anew
  EXPECT_THAT(iterations(), ElementsAre(9, 1, 2));
}

}  // namespace
}  // namespace telens::features
