// Plans of GEMMs on CUDA, tested without a GPU: the kernel of each GEMM on each GPU, the text that
// describes a GEMM, and which GEMMs share an algorithm.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <string>
#include <string_view>
#include <vector>

#include "core/kernels/cuda/gemm/gemm_plan.h"
#include "core/kernels/cuda/gemm/lt_gemm.h"

namespace telens::cuda {
namespace {

using ::testing::HasSubstr;

constexpr auto kE4m3 = FormatId::e4m3, kE5m2 = FormatId::e5m2, kE2m1 = FormatId::e2m1;
constexpr auto kTensor = ScalingMode::tensor, kMx = ScalingMode::mxfp8, kNv = ScalingMode::nvfp4;
constexpr auto kRow = ScalingMode::block_1d, kSquare = ScalingMode::block_2d;
constexpr auto kBf16 = FormatId::bf16;
constexpr int kAmpere = 80, kAda = 89, kHopper = 90, kBlackwell = 100, kBlackwellUltra = 103,
              kGeForce = 120;

struct Row {
  int capability;
  FormatId a_format;
  ScalingMode a_mode;
  FormatId b_format;
  ScalingMode b_mode;
  std::array<std::int64_t, 3> mnk;
  std::string_view reason;  // "": native
  bool takes_transposed;
  FormatId out = FormatId::bf16;
  bool power_of_2_scales = false;  // known to be
};

const std::vector<Row> kTable{
    {kAmpere, kE4m3, kTensor, kE4m3, kTensor, {256, 512, 128}, "need Ada", true},
    {kAda, kE4m3, kTensor, kE4m3, kTensor, {256, 512, 128}, "", false},
    {kHopper, kE4m3, kTensor, kE4m3, kTensor, {256, 512, 128}, "", false},
    {kHopper, kE5m2, kTensor, kE4m3, kTensor, {16, 16, 16}, "", false, FormatId::fp32},
    {kHopper, kE5m2, kTensor, kE5m2, kTensor, {16, 16, 16}, "E5M2 by E5M2", true},
    {kHopper, kE4m3, kTensor, kE4m3, kTensor, {33, 16, 16}, "multiple of 16", true},
    {kHopper, kE4m3, kTensor, kE4m3, kTensor, {16, 33, 16}, "multiple of 16", true},
    {kHopper, kE4m3, kTensor, kE4m3, kTensor, {16, 16, 33}, "multiple of 16", true},
    {kBlackwell, kE4m3, kTensor, kE4m3, kTensor, {256, 512, 128}, "", true},
    {kGeForce, kE4m3, kTensor, kE4m3, kTensor, {256, 512, 128}, "", false},

    {kHopper, kE4m3, kRow, kE4m3, kRow, {256, 512, 128}, "", false},
    {kHopper, kE4m3, kRow, kE4m3, kSquare, {256, 512, 128}, "", false},
    {kHopper, kE5m2, kSquare, kE4m3, kRow, {48, 80, 640}, "", false},
    {kHopper, kE4m3, kSquare, kE4m3, kSquare, {256, 512, 128}, "128x128 blocks by", true},
    {kHopper, kE4m3, kRow, kE4m3, kRow, {256, 512, 192}, "K is not a multiple of 128", true},
    {kHopper, kE4m3, kRow, kE4m3, kSquare, {250, 512, 128}, "multiple of 16", true},
    {kBlackwell, kE4m3, kRow, kE4m3, kSquare, {256, 512, 128}, "may be no powers of two", true},
    {kGeForce, kE4m3, kRow, kE4m3, kRow, {256, 512, 128}, "may be no powers of two", true},
    {kAda, kE4m3, kRow, kE4m3, kRow, {256, 512, 128}, "only Hopper", true},

    {kHopper, kE4m3, kRow, kE4m3, kSquare, {256, 512, 128}, "", false, kBf16, true},
    {kHopper, kE4m3, kRow, kE4m3, kSquare, {256, 512, 160}, "multiple of 128", true, kBf16, true},
    {kAda, kE4m3, kRow, kE4m3, kRow, {256, 512, 128}, "only Hopper", true, kBf16, true},
    {kBlackwell, kE4m3, kRow, kE4m3, kRow, {256, 512, 128}, "", true, kBf16, true},
    {kBlackwell, kE4m3, kRow, kE4m3, kSquare, {144, 272, 160}, "", true, kBf16, true},
    {kBlackwellUltra, kE5m2, kSquare, kE4m3, kRow, {144, 272, 640}, "", true, kBf16, true},
    {kGeForce, kE4m3, kRow, kE4m3, kSquare, {256, 512, 128}, "", false, kBf16, true},
    {kBlackwell, kE5m2, kRow, kE5m2, kRow, {256, 512, 128}, "E5M2 by E5M2", true, kBf16, true},
    {kBlackwell,
     kE4m3,
     kSquare,
     kE4m3,
     kSquare,
     {256, 512, 128},
     "128x128 blocks by",
     true,
     kBf16,
     true},
    {kBlackwell, kE4m3, kRow, kE4m3, kRow, {256, 512, 48}, "multiple of 32", true, kBf16, true},
    {kBlackwell, kE4m3, kRow, kE4m3, kRow, {250, 512, 128}, "multiple of 16", true, kBf16, true},

    {kHopper, kE4m3, kMx, kE4m3, kMx, {256, 512, 128}, "MXFP8 products need Blackwell", true},
    {kBlackwell, kE4m3, kMx, kE5m2, kMx, {256, 512, 160}, "", true},
    {kBlackwellUltra, kE4m3, kMx, kE4m3, kMx, {256, 512, 160}, "", true},
    {kGeForce, kE4m3, kMx, kE4m3, kMx, {256, 512, 160}, "", false},
    {kBlackwell, kE5m2, kMx, kE5m2, kMx, {256, 512, 160}, "E5M2 by E5M2", true},
    {kBlackwell, kE4m3, kMx, kE4m3, kMx, {256, 512, 48}, "K is not a multiple of 32", true},

    {kHopper, kE2m1, kNv, kE2m1, kNv, {256, 512, 128}, "NVFP4 products need Blackwell", true},
    {kBlackwell, kE2m1, kNv, kE2m1, kNv, {256, 512, 128}, "", false},
    {kBlackwell, kE2m1, kNv, kE2m1, kNv, {256, 512, 128}, "FP16", true, FormatId::fp16},
    {kBlackwell, kE2m1, kNv, kE2m1, kNv, {256, 512, 16}, "K is not a multiple of 32", true},
};

std::string name_of_row(const Row& row) {
  return fmt::format("{}: {} {} by {} {}, {} x {} x {} to {}", row.capability,
                     get_name(row.a_format), get_name(row.a_mode), get_name(row.b_format),
                     get_name(row.b_mode), row.mnk[0], row.mnk[1], row.mnk[2], get_name(row.out));
}

TEST(GemmPlan, follows_the_table_for_every_card_format_and_shape) {
  for (const Row& row : kTable) {
    SCOPED_TRACE(name_of_row(row));
    const GemmPlan plan =
        plan_gemm({row.capability, row.a_format, row.a_mode, row.b_format, row.b_mode, row.mnk[0],
                   row.mnk[1], row.mnk[2], row.out, row.power_of_2_scales});
    EXPECT_EQ(plan.native, row.reason.empty());
    EXPECT_EQ(plan.choice.reason.empty(), row.reason.empty()) << plan.choice.reason;
    EXPECT_THAT(std::string(plan.choice.reason), HasSubstr(std::string(row.reason)));
    EXPECT_EQ(plan.takes_transposed, row.takes_transposed);
    EXPECT_THAT(std::string(plan.choice.kernel), HasSubstr(plan.native ? "cuBLASLt" : "BF16"));
    const bool in_128_blocks = row.a_mode == kRow || row.a_mode == kSquare;
    EXPECT_EQ(plan.scales_as == ScalingMode::mxfp8,
              plan.native && in_128_blocks && row.capability >= kBlackwell);
    if (plan.scales_as) {
      EXPECT_EQ(plan.choice.kernel, "cuBLASLt MXFP8 product of 128-blocks");
    }
  }
}

// Only its address is used.
alignas(256) std::array<std::byte, 512> memory;

LtGemm some_gemm() {
  return {.m = 256,
          .n = 512,
          .k = 128,
          .a = {memory.data(), kE4m3, 128, false, memory.data(), kRow},
          .b = {memory.data(), kE4m3, 128, false, memory.data(), kSquare},
          .out = memory.data(),
          .out_format = FormatId::bf16,
          .out_leading = 512};
}

TEST(LtGemm, description_has_shapes_formats_scales_and_options) {
  LtGemm gemm = some_gemm();
  EXPECT_EQ(describe(gemm),
            "[M, N, K] = [256, 512, 128], A E4M3 in 1x128 blocks, B E4M3 in 128x128 blocks -> "
            "BF16, split accumulator");
  gemm.bias = memory.data();
  gemm.accumulate = gemm.fast_accumulation = true;
  gemm.a.scaling = gemm.b.scaling = kTensor;
  EXPECT_EQ(describe(gemm),
            "[M, N, K] = [256, 512, 128], A E4M3 under one scale, B E4M3 under one scale -> BF16, "
            "bias BF16, added to the output, fast accumulation");
  const float alpha = 1;
  EXPECT_EQ(describe({.m = 1,
                      .n = 2,
                      .k = 3,
                      .a = {memory.data(), FormatId::fp32, 3},
                      .b = {memory.data(), FormatId::fp32, 2, true},
                      .out = memory.data(),
                      .out_format = FormatId::fp32,
                      .out_leading = 2,
                      .tf32 = true,
                      .alpha = &alpha,
                      .beta = &alpha}),
            "[M, N, K] = [1, 2, 3], A FP32, B FP32, transposed -> FP32, alpha on the device, TF32");
}

TEST(LtGemm, has_the_key_of_an_equal_one_and_of_no_other) {
  const LtKey key = make_key(some_gemm(), 0);
  EXPECT_EQ(key, make_key(some_gemm(), 0));
  EXPECT_NE(key, make_key(some_gemm(), 1));
  LtGemm moved = some_gemm();
  moved.a.data = memory.data() + 256;  // as far aligned
  EXPECT_EQ(key, make_key(moved, 0));
  const std::vector<void (*)(LtGemm&)> changes{
      [](LtGemm& g) { g.m = 16; },
      [](LtGemm& g) { g.n = 16; },
      [](LtGemm& g) { g.k = 16; },
      [](LtGemm& g) { g.a.leading = 256; },
      [](LtGemm& g) { g.b.leading = 256; },
      [](LtGemm& g) { g.out_leading = 1024; },
      [](LtGemm& g) { g.a.format = kE5m2; },
      [](LtGemm& g) { g.b.format = kE5m2; },
      [](LtGemm& g) { g.out_format = FormatId::fp32; },
      [](LtGemm& g) { g.bias = memory.data(); },
      [](LtGemm& g) { g.a.scaling = kSquare; },
      [](LtGemm& g) { g.b.scaling = kRow; },
      [](LtGemm& g) { g.b.scales = nullptr; },
      [](LtGemm& g) { g.a.transposed = true; },
      [](LtGemm& g) { g.b.transposed = true; },
      [](LtGemm& g) { g.accumulate = true; },
      [](LtGemm& g) { g.fast_accumulation = true; },
      [](LtGemm& g) { g.tf32 = true; },
      [](LtGemm& g) { g.alpha = reinterpret_cast<const float*>(memory.data()); },
      [](LtGemm& g) { g.beta = reinterpret_cast<const float*>(memory.data()); },
      [](LtGemm& g) { g.a.data = memory.data() + 16; },
      [](LtGemm& g) { g.b.data = memory.data() + 16; },
      [](LtGemm& g) { g.out = memory.data() + 16; }};
  for (std::size_t i = 0; i < changes.size(); ++i) {
    LtGemm changed = some_gemm();
    changes[i](changed);
    EXPECT_NE(key, make_key(changed, 0)) << "change " << i;
  }
}

TEST(LtGemm, alignments_are_powers_of_two_up_to_256) {
  const auto aligned = [](std::uintptr_t address) {
    return get_alignment(reinterpret_cast<const void*>(address));
  };
  EXPECT_EQ(aligned(0), 256);
  EXPECT_EQ(aligned(4096), 256);
  EXPECT_EQ(aligned(4096 + 16), 16);
  EXPECT_EQ(aligned(4096 + 34), 2);
  EXPECT_EQ(aligned(1), 1);
}

}  // namespace
}  // namespace telens::cuda
