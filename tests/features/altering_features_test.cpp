// The effect of FakeQuant, DisableFP8GEMM and DisableFP8Layer in a real layer.
#include <gmock/gmock.h>

#include "core/formats/convert.h"
#include "core/formats/formats.h"
#include "features/fake_quant/fake_quant.h"
#include "tests/features/altering_fixture.h"

namespace telens {
namespace {

using features::fake_quantize;

template <typename Format>
at::Tensor plain_reference(const at::Tensor& x) {
  const at::Tensor values = x.to(at::kFloat).contiguous().clone();
  const float amax = values.abs().max().item<float>();
  const float scale = Format::kMax / amax;
  const float scale_inv = 1 / scale;
  auto* data = values.data_ptr<float>();
  for (std::int64_t i = 0; i < values.numel(); ++i) {
    const auto code = encode<Format>(data[i] * scale, Saturation::saturating);
    data[i] = decode<Format>(code) * scale_inv;
  }
  return values.to(x.scalar_type());
}

TEST(FakeQuantize, matches_cast_and_decode_for_all_shapes_and_dtypes) {
  at::manual_seed(3);
  for (const at::ScalarType dtype : {at::kBFloat16, at::kHalf, at::kFloat}) {
    const at::Tensor x = (at::randn({3, 5, 7}) * 1e-3).to(dtype);
    EXPECT_TRUE(at::equal(fake_quantize(x, FormatId::e4m3), plain_reference<E4M3>(x)));
    EXPECT_TRUE(at::equal(fake_quantize(x, FormatId::e5m2), plain_reference<E5M2>(x)));
    const at::Tensor transposed = x.transpose(0, 2);
    EXPECT_TRUE(
        at::equal(fake_quantize(transposed, FormatId::e4m3), plain_reference<E4M3>(transposed)));
  }
  EXPECT_EQ(fake_quantize(at::empty({0, 4}), FormatId::e4m3).sizes(), at::IntArrayRef({0, 4}));
}

using features::FakeQuantOptions;

// An element of the matrix and, in its row and column, the elements that decide the scales of its
// blocks.
float fake_quantized(const at::Tensor& x, int row, int column, const FakeQuantOptions& options,
                     Gemm gemm, TensorName tensor) {
  return fake_quantize(x, options, gemm, tensor)[row][column].item<float>();
}

// MXFP8 takes the smallest power of two under which the block's amax is at most 448. Row 0:
//   1000 / 4 = 250, nearest of 240 and 256: 256, and back 1024
//   0.01 / 4 = 0.0025 = 1.28 x 2^-9, of subnormals 2^-9 apart: 2^-9, and back 2^-7
// Column 1: 0.01 x 2^15 = 327.68, nearest of 320 and 352: 320, and back 320 / 2^15
TEST(FakeQuantizeInBlocks, mxfp8_along_summed_dimension_matches_hand_computation) {
  const FakeQuantOptions format{FormatId::e4m3, RecipeId::mxfp8};
  at::Tensor x = at::zeros({32, 32});
  x[0][0] = 1000;
  x[0][1] = 0.01;
  const float rows = 0x1p-7F, columns = 320 * 0x1p-15F;
  const auto second_of_row = [&](Gemm gemm, TensorName tensor) {
    EXPECT_EQ(fake_quantized(x, 0, 0, format, gemm, tensor), 1024);
    return fake_quantized(x, 0, 1, format, gemm, tensor);
  };
  EXPECT_EQ(second_of_row(Gemm::fprop, TensorName::activation), rows);
  EXPECT_EQ(second_of_row(Gemm::wgrad, TensorName::activation), columns);
  EXPECT_EQ(second_of_row(Gemm::fprop, TensorName::weight), rows);
  EXPECT_EQ(second_of_row(Gemm::dgrad, TensorName::weight), columns);
  EXPECT_EQ(second_of_row(Gemm::dgrad, TensorName::gradient), rows);
  EXPECT_EQ(second_of_row(Gemm::wgrad, TensorName::gradient), columns);
  EXPECT_EQ(second_of_row(Gemm::fprop, TensorName::output), rows);
  EXPECT_EQ(second_of_row(Gemm::dgrad, TensorName::dgrad), rows);
  EXPECT_EQ(second_of_row(Gemm::wgrad, TensorName::wgrad), rows);
}

// The scale is 448 / amax, down to a power of two: 1/4 for 1000, 2^15 for 0.01; the rest is as
// above. The block of a weight is a square.
TEST(FakeQuantizeInBlocks, blocks_of_128_match_hand_computation) {
  const FakeQuantOptions format{FormatId::e4m3, RecipeId::fp8_block_scaling};
  at::Tensor x = at::zeros({16, 16});
  x[0][0] = 1000;
  x[0][1] = 0.01;
  const auto second_of_row = [&](Gemm gemm, TensorName tensor) {
    return fake_quantized(x, 0, 1, format, gemm, tensor);
  };
  EXPECT_EQ(second_of_row(Gemm::fprop, TensorName::activation), 0x1p-7F);
  EXPECT_EQ(second_of_row(Gemm::wgrad, TensorName::activation), 320 * 0x1p-15F);
  EXPECT_EQ(second_of_row(Gemm::fprop, TensorName::weight), 0x1p-7F);
  EXPECT_EQ(second_of_row(Gemm::dgrad, TensorName::weight), 0x1p-7F);
}

// The tensor's amax is 448 x 6, so its own scale is 1 and that of a block amax / 6: 448 in row 0,
// where 100 / 448 rounds to 0, and 2 in row 1, where 1.3 / 2 rounds to 0.5. A weight's square has
// only the scale 448.
TEST(FakeQuantizeInBlocks, nvfp4_matches_hand_computation) {
  const FakeQuantOptions format{FormatId::e2m1, RecipeId::nvfp4};
  at::Tensor x = at::zeros({16, 16});
  x[0][0] = 2688;
  x[0][1] = 100;
  x[1][1] = 12;
  x[1][2] = 1.3;
  const auto at_place = [&](int row, int column, TensorName tensor) {
    return fake_quantized(x, row, column, format, Gemm::fprop, tensor);
  };
  EXPECT_EQ(at_place(0, 0, TensorName::activation), 2688);
  EXPECT_EQ(at_place(0, 1, TensorName::activation), 0);
  EXPECT_EQ(at_place(1, 1, TensorName::activation), 12);
  EXPECT_EQ(at_place(1, 2, TensorName::activation), 1);
  EXPECT_EQ(at_place(0, 0, TensorName::weight), 2688);
  EXPECT_EQ(at_place(1, 1, TensorName::weight), 0);
}

using AlteringFeaturesTest = testing::AlteringTest;
using testing::Pass;

TEST_F(AlteringFeaturesTest, disabled_layer_matches_high_precision_bit_for_bit) {
  const Pass plain = run(nullptr);
  const Pass quantized = run(testing::current_scaling());
  begin("DisableFP8Layer: {enabled: True}\n");
  const Pass disabled = run(testing::current_scaling());
  EXPECT_TRUE(at::equal(disabled.output, plain.output));
  EXPECT_TRUE(at::equal(disabled.input_grad, plain.input_grad));
  EXPECT_TRUE(at::equal(disabled.weight_grad, plain.weight_grad));
  EXPECT_FALSE(at::equal(quantized.output, plain.output));
}

TEST_F(AlteringFeaturesTest, a_disabled_gemm_leaves_the_others_in_fp8) {
  const Pass plain = run(nullptr);
  const Pass quantized = run(testing::current_scaling());
  begin("DisableQuantizationGEMM: {enabled: True, gemms: [wgrad]}\n");
  const Pass disabled = run(testing::current_scaling());
  EXPECT_TRUE(at::equal(disabled.output, quantized.output));
  EXPECT_TRUE(at::equal(disabled.input_grad, quantized.input_grad));
  EXPECT_TRUE(at::equal(disabled.weight_grad, plain.weight_grad));
  EXPECT_FALSE(at::equal(quantized.weight_grad, plain.weight_grad));
}

TEST_F(AlteringFeaturesTest, a_schedule_disables_fp8_in_its_iterations_only) {
  const Pass plain = run(nullptr);
  const Pass quantized = run(testing::current_scaling());
  begin("DisableFP8Layer: {enabled: True, freq: 2}\n");
  for (int i = 0; i < 4; ++i) {
    const Pass pass = run(testing::current_scaling());
    EXPECT_TRUE(at::equal(pass.output, i % 2 == 0 ? plain.output : quantized.output)) << i;
    debug::step();
  }
}

TEST_F(AlteringFeaturesTest, fake_quant_gives_the_gemm_fake_quantized_operands) {
  const at::NoGradGuard no_grad;  // for the references
  const at::Tensor x = fake_quantize(input, FormatId::e4m3);
  const at::Tensor w = fake_quantize(linear().weight(), FormatId::e5m2);
  const at::Tensor g = fake_quantize(gradient, FormatId::e5m2);
  begin(
      "FakeQuant:\n"
      "  enabled: True\n"
      "  gemms_struct:\n"
      "    - {gemm: fprop, tensors_struct: [{tensor: activation, quant_format: FP8E4M3},\n"
      "                                     {tensor: weight, quant_format: FP8E5M2}]}\n"
      "    - {gemm: wgrad, tensors: [gradient], quant_format: FP8E5M2}\n");
  for (const auto& recipe : {std::shared_ptr<const Recipe>(), testing::current_scaling()}) {
    const at::AutoGradMode with_grad(true);
    const Pass pass = run(recipe);
    EXPECT_TRUE(at::equal(pass.output, at::matmul(x, w.t())));
    EXPECT_TRUE(at::equal(pass.weight_grad, at::matmul(g.t(), input.detach())));
  }
}

TEST_F(AlteringFeaturesTest, fake_quant_items_have_separate_schedules) {
  const Pass plain = run(nullptr);
  const at::Tensor x = fake_quantize(input.detach(), FormatId::e5m2);
  const at::Tensor g = fake_quantize(gradient, FormatId::e5m2);
  begin(
      "FakeQuant:\n"
      "  enabled: True\n"
      "  quant_format: FP8E5M2\n"
      "  gemms_struct:\n"
      "    - {gemm: fprop, tensors: [activation], freq: 2}\n"
      "    - {gemm: wgrad, tensors: [gradient], start_step: 2, end_step: 2}\n");
  const at::Tensor output = at::matmul(x, linear().weight().detach().t());
  const at::Tensor weight_grad = at::matmul(g.t(), input.detach());
  EXPECT_FALSE(at::equal(output, plain.output));
  EXPECT_FALSE(at::equal(weight_grad, plain.weight_grad));
  for (int i = 0; i < 4; ++i) {
    const Pass pass = run(nullptr);
    EXPECT_TRUE(at::equal(pass.output, i % 2 == 0 ? output : plain.output)) << i;
    EXPECT_TRUE(at::equal(pass.weight_grad, i == 2 ? weight_grad : plain.weight_grad)) << i;
    debug::step();
  }
}

TEST_F(AlteringFeaturesTest, fake_quant_does_not_change_unselected_gemms) {
  const Pass quantized = run(testing::current_scaling());
  begin(
      "FakeQuant: {enabled: True, gemms: [fprop], tensors: [activation], quant_format: FP8E4M3}\n");
  const Pass pass = run(testing::current_scaling());
  EXPECT_FALSE(at::equal(pass.output, quantized.output));
  EXPECT_TRUE(at::equal(pass.input_grad, quantized.input_grad));
  EXPECT_TRUE(at::equal(pass.weight_grad, quantized.weight_grad));
}

TEST_F(AlteringFeaturesTest, fake_quant_alters_outputs_too) {
  const Pass plain = run(nullptr);
  begin(
      "FakeQuant: {enabled: True, gemms: [fprop, dgrad, wgrad], tensors: [output, dgrad, wgrad], "
      "quant_format: FP8E5M2}\n");
  const Pass pass = run(nullptr);
  EXPECT_TRUE(at::equal(pass.output, fake_quantize(plain.output, FormatId::e5m2)));
  EXPECT_TRUE(at::equal(pass.input_grad, fake_quantize(plain.input_grad, FormatId::e5m2)));
  EXPECT_TRUE(at::equal(pass.weight_grad, fake_quantize(plain.weight_grad, FormatId::e5m2)));
}

TEST_F(AlteringFeaturesTest, pairs_that_never_meet_are_idle) {
  const Pass quantized = run(testing::current_scaling());
  begin("FakeQuant: {enabled: True, gemms: [fprop], tensors: [gradient], quant_format: FP8E4M3}\n");
  const Pass pass = run(testing::current_scaling());
  EXPECT_TRUE(at::equal(pass.output, quantized.output));
  EXPECT_TRUE(at::equal(pass.weight_grad, quantized.weight_grad));
}

TEST_F(AlteringFeaturesTest, a_kept_weight_is_fake_quantized_in_every_micro_batch) {
  begin("FakeQuant: {enabled: True, gemms: [fprop], tensors: [weight], quant_format: FP8E4M3}\n");
  const at::Tensor w = fake_quantize(linear().weight().detach(), FormatId::e4m3);
  const auto recipe = testing::current_scaling();  // a kept weight is used for one recipe only
  for (int step = 0; step < 2; ++step) {
    for (const bool first : {true, false}) {
      const Pass pass = run(recipe, first);
      EXPECT_TRUE(at::equal(pass.output.detach(), at::matmul(input.detach(), w.t())));
    }
    debug::step();
  }
}

TEST_F(AlteringFeaturesTest, observers_get_the_tensor_before_modification) {
  begin(
      "FakeQuant: {enabled: True, gemms: [fprop], tensors: [activation], quant_format: FP8E5M2}\n"
      "LogTensorStats: {enabled: True, tensors: [activation], stats: [l2_norm]}\n");
  run(nullptr);
  debug::end_debug();
  for (const testing::StoredValue& each : testing::stored_values(folder.str())) {
    if (each.statistic != "l2_norm") continue;
    const double norm = input.detach().to(at::kDouble).norm().item<double>();
    EXPECT_NEAR(each.value, norm, 1e-5 * norm);
    return;
  }
  FAIL() << "nothing was recorded";
}

}  // namespace
}  // namespace telens
