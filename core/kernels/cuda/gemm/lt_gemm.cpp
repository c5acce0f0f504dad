#include "core/kernels/cuda/gemm/lt_gemm.h"

#include <fmt/format.h>

#include <string_view>

namespace telens::cuda {
namespace {

std::string text_of_scales(const LtOperand& operand) {
  if (operand.scales == nullptr) return "";
  if (operand.scaling == ScalingMode::tensor) return " under one scale";
  return fmt::format(" in {}{}s", name_of(operand.scaling),
                     has_128_blocks(operand.scaling) ? "" : " block");
}

std::string text_of(const LtOperand& operand) {
  return fmt::format("{}{}{}", name_of(operand.format), text_of_scales(operand),
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
                  text_of(gemm.a), text_of(gemm.b), name_of(gemm.out_format));
  if (gemm.bias != nullptr) text += fmt::format(", bias {}", name_of(gemm.bias_format));
  if (gemm.alpha != nullptr) text += ", alpha on the device";
  if (gemm.accumulate) text += ", added to the output";
  if (gemm.tf32) text += ", TF32";
  if (gemm.a.scales != nullptr) {
    text += gemm.fast_accumulation ? ", fast accumulation" : ", split accumulator";
  }
  return text;
}

std::uint32_t alignment_of(const void* address) {
  const auto bits = reinterpret_cast<std::uintptr_t>(address) | 256U;
  return static_cast<std::uint32_t>(bits & (~bits + 1));
}

LtKey key_of(const LtGemm& gemm, int device) {
  const auto kind = [](auto value) { return static_cast<int>(value); };
  return {device,
          {gemm.m, gemm.n, gemm.k, gemm.a.leading, gemm.b.leading, gemm.out_leading},
          {kind(gemm.a.format), kind(gemm.b.format), kind(gemm.out_format),
           gemm.bias == nullptr ? kNone : kind(gemm.bias_format), scale_kind(gemm.a),
           scale_kind(gemm.b), kind(gemm.a.transposed), kind(gemm.b.transposed),
           kind(gemm.accumulate), kind(gemm.fast_accumulation), kind(gemm.tf32),
           kind(gemm.alpha != nullptr), kind(gemm.beta != nullptr)},
          {alignment_of(gemm.a.data), alignment_of(gemm.b.data), alignment_of(gemm.out),
           alignment_of(gemm.bias)}};
}

}  // namespace telens::cuda
