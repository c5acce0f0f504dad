#include "core/kernels/cuda/gemm/lt_gemm.h"

#include <fmt/format.h>

#include <string_view>

namespace telens::cuda {
namespace {

std::string text_of_scales(const LtOperand& operand) {
  if (operand.scales == nullptr) return "";
  if (operand.scaling == ScalingMode::tensor) return " under one scale";
  return fmt::format(" in {}{}s", get_name(operand.scaling),
                     has_128_blocks(operand.scaling) ? "" : " block");
}

std::string to_text(const LtOperand& operand) {
  return fmt::format("{}{}{}", get_name(operand.format), text_of_scales(operand),
                     operand.transposed ? ", transposed" : "");
}

constexpr int kNone = -1;

int scale_kind(const LtOperand& operand) {
  return operand.scales == nullptr ? kNone : static_cast<int>(operand.scaling);
}

}  // namespace

std::string describe(const LtGemm& gemm) {
  std::string text =
      fmt::format("[M, N, K] = [{}, {}, {}], A {}, B {} -> {}", gemm.m, gemm.n, gemm.k,
                  to_text(gemm.a), to_text(gemm.b), get_name(gemm.out_format));
  if (gemm.bias != nullptr) text += fmt::format(", bias {}", get_name(gemm.bias_format));
  if (gemm.alpha != nullptr) text += ", alpha on the device";
  if (gemm.accumulate) text += ", added to the output";
  if (gemm.tf32) text += ", TF32";
  if (gemm.a.scales != nullptr) {
    text += gemm.fast_accumulation ? ", fast accumulation" : ", split accumulator";
  }
  return text;
}

std::uint32_t get_alignment(const void* address) {
  const auto bits = reinterpret_cast<std::uintptr_t>(address) | 256U;
  return static_cast<std::uint32_t>(bits & (~bits + 1));
}

LtKey make_key(const LtGemm& gemm, int device) {
  const auto kind = [](auto value) { return static_cast<int>(value); };
  return {device,
          {gemm.m, gemm.n, gemm.k, gemm.a.leading, gemm.b.leading, gemm.out_leading},
          {kind(gemm.a.format), kind(gemm.b.format), kind(gemm.out_format),
           gemm.bias == nullptr ? kNone : kind(gemm.bias_format), scale_kind(gemm.a),
           scale_kind(gemm.b), kind(gemm.a.transposed), kind(gemm.b.transposed),
           kind(gemm.accumulate), kind(gemm.fast_accumulation), kind(gemm.tf32),
           kind(gemm.alpha != nullptr), kind(gemm.beta != nullptr)},
          {get_alignment(gemm.a.data), get_alignment(gemm.b.data), get_alignment(gemm.out),
           get_alignment(gemm.bias)}};
}

}  // namespace telens::cuda
