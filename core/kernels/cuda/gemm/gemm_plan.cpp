#include "core/kernels/cuda/gemm/gemm_plan.h"

#include <string_view>

namespace telens::cuda {
namespace {

constexpr int kAda = 89;
constexpr int kHopper = 90;
constexpr int kBlackwell = 100;
constexpr int kBlackwellGeForce = 120;

// cuBLASLt requires rows of 16 bytes in FP8 operands.
constexpr std::int64_t kFp8Multiple = 16;
constexpr std::string_view kNotMultipleOf16 =
    "a dimension is not a multiple of 16, as FP8 requires";

bool is_multiple(std::int64_t size, std::int64_t of) { return size % of == 0; }

// Blackwell does not support 128-blocks, but a 128-block with a power-of-two scale is four MXFP8
// blocks.
bool goes_as_mxfp8(const GemmQuestion& question) {
  return has_128_blocks(question.a_mode) && question.power_of_2_scales &&
         question.capability >= kBlackwell;
}

// K must be a multiple of 16 bytes and of the block size. A truncated last block did not work on
// any card that was tried.
std::string_view obstacle_in_k(ScalingMode mode, std::int64_t k) {
  switch (mode) {
    case ScalingMode::tensor:
      return is_multiple(k, kFp8Multiple) ? "" : kNotMultipleOf16;
    case ScalingMode::mxfp8:
      return is_multiple(k, 32) ? "" : "K is not a multiple of 32, as MXFP8 requires";
    case ScalingMode::block_1d:
    case ScalingMode::block_2d:
      return is_multiple(k, 128) ? "" : "K is not a multiple of 128, as 128-blocks require";
    case ScalingMode::nvfp4:
    case ScalingMode::mxfp6_e3m2:
    case ScalingMode::mxfp6_e2m3:
      break;
  }
  return is_multiple(k, 32) ? "" : "K is not a multiple of 32, as NVFP4 requires";
}

std::string_view obstacle_of_card(const GemmQuestion& question) {
  switch (question.a_mode) {
    case ScalingMode::tensor:
      return question.capability >= kAda ? "" : "FP8 products need Ada or newer";
    case ScalingMode::mxfp8:
      return question.capability >= kBlackwell ? "" : "MXFP8 products need Blackwell or newer";
    case ScalingMode::block_1d:
    case ScalingMode::block_2d:
      if (question.capability == kHopper || goes_as_mxfp8(question)) return "";
      return question.capability >= kBlackwell
                 ? "only Hopper multiplies 128-blocks whose scales may be no powers of two"
                 : "only Hopper multiplies 128-blocks";
    case ScalingMode::mxfp6_e3m2:
    case ScalingMode::mxfp6_e2m3:
      return "MXFP6 has no CUDA kernels";
    case ScalingMode::nvfp4:
      break;
  }
  return question.capability >= kBlackwell ? "" : "NVFP4 products need Blackwell or newer";
}

// Returns the reason why cuBLASLt does not multiply the codes; "" if it does.
std::string_view obstacle_to_native(const GemmQuestion& question) {
  if (const auto obstacle = obstacle_of_card(question); !obstacle.empty()) return obstacle;
  if (question.a_format == FormatId::e5m2 && question.b_format == FormatId::e5m2) {
    return "cuBLASLt multiplies no E5M2 by E5M2";
  }
  if (question.a_mode == ScalingMode::block_2d && question.b_mode == ScalingMode::block_2d) {
    return "cuBLASLt multiplies no 128x128 blocks by 128x128 blocks";
  }
  if (question.a_mode == ScalingMode::nvfp4 && question.out_format == FormatId::fp16) {
    return "NVFP4 products with FP16 output are not trusted";  // Transformer Engine rejects them
  }
  if (!is_multiple(question.m, kFp8Multiple) || !is_multiple(question.n, kFp8Multiple)) {
    return kNotMultipleOf16;
  }
  return obstacle_in_k(goes_as_mxfp8(question) ? ScalingMode::mxfp8 : question.a_mode, question.k);
}

std::string_view native_kernel(ScalingMode mode, bool as_mxfp8) {
  if (as_mxfp8) return "cuBLASLt MXFP8 product of 128-blocks";
  if (mode == ScalingMode::tensor) return "cuBLASLt FP8 product";
  if (mode == ScalingMode::mxfp8) return "cuBLASLt MXFP8 product";
  return has_128_blocks(mode) ? "cuBLASLt FP8 product of 128-blocks" : "cuBLASLt NVFP4 product";
}

std::string_view emulated_kernel(ScalingMode mode) {
  if (mode == ScalingMode::mxfp8) return "BF16 product of rescaled operands";
  return has_128_blocks(mode) ? "BF16 products by blocks of K" : "BF16 product of decoded operands";
}

}  // namespace

GemmPlan plan_gemm(const GemmQuestion& question) {
  const std::string_view obstacle = obstacle_to_native(question);
  if (!obstacle.empty())
    return {false, true, std::nullopt, {emulated_kernel(question.a_mode), obstacle}};
  const bool as_mxfp8 = goes_as_mxfp8(question);
  // Per-tensor FP8 or MXFP8 scales. All other modes require K along the rows on every card.
  const bool any_layout =
      question.capability >= kBlackwell && question.capability < kBlackwellGeForce &&
      (question.a_mode == ScalingMode::tensor || question.a_mode == ScalingMode::mxfp8 || as_mxfp8);
  const auto scales_as = as_mxfp8 ? std::optional(ScalingMode::mxfp8) : std::nullopt;
  return {true, any_layout, scales_as, {native_kernel(question.a_mode, as_mxfp8), ""}};
}

ops::GemmChoice choice_without_algorithm(ScalingMode mode) {
  return {emulated_kernel(mode), "cuBLASLt has no algorithm for this product on this card"};
}

}  // namespace telens::cuda
