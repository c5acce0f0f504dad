// The words of the debug contract that configuration, hooks, records and the command share.
// No LibTorch.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string_view>

namespace telens {

// The three matrix products of a linear layer.
//   fprop: output[tokens, out] = activation[tokens, in]  x weight[out, in]^T
//   dgrad: dgrad [tokens, in]  = gradient [tokens, out]  x weight[out, in]
//   wgrad: wgrad [out, in]     = gradient [tokens, out]^T x activation[tokens, in]
enum class Gemm : std::uint8_t { fprop, dgrad, wgrad };
inline constexpr std::array kAllGemms{Gemm::fprop, Gemm::dgrad, Gemm::wgrad};

// The six tensors of a linear layer that can be watched. The first three are inputs of GEMMs.
enum class TensorName : std::uint8_t { activation, weight, gradient, output, wgrad, dgrad };
inline constexpr std::array kAllTensors{TensorName::activation, TensorName::weight,
                                        TensorName::gradient,   TensorName::output,
                                        TensorName::wgrad,      TensorName::dgrad};

std::string_view name_of(Gemm gemm);
std::string_view name_of(TensorName tensor);
std::optional<Gemm> gemm_from_name(std::string_view name);
std::optional<TensorName> tensor_from_name(std::string_view name);

constexpr bool is_gemm_input(TensorName tensor) {
  return tensor == TensorName::activation || tensor == TensorName::weight ||
         tensor == TensorName::gradient;
}

// The GEMM that produces an output tensor, or the two that consume an input tensor, in the order
// in which training runs them: activation: fprop, wgrad; weight: fprop, dgrad; gradient: dgrad,
// wgrad; output: fprop; dgrad: dgrad; wgrad: wgrad (then first == second).
struct GemmsOfTensor {
  Gemm first;
  Gemm second;
};
GemmsOfTensor gemms_of(TensorName tensor);

// True if the tensor is an operand or the result of the GEMM.
bool belongs_to(TensorName tensor, Gemm gemm);

}  // namespace telens
