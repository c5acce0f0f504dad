// The names of GEMMs and tensors that configuration, hooks, records and the command share.
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

// The tensors that features can inspect: six of a linear layer (the first three are GEMM inputs),
// then the tensors of an attention. `scores` is the argument of softmax; it is never materialized.
enum class TensorName : std::uint8_t {
  activation,
  weight,
  gradient,
  output,
  wgrad,
  dgrad,
  query,
  key,
  value,
  scores,
  attention_output,
  query_gradient,
  key_gradient,
  value_gradient,
  attention_output_gradient,
};
inline constexpr std::array kLinearTensors{TensorName::activation, TensorName::weight,
                                           TensorName::gradient,   TensorName::output,
                                           TensorName::wgrad,      TensorName::dgrad};
inline constexpr std::array kAttentionTensors{TensorName::query,
                                              TensorName::key,
                                              TensorName::value,
                                              TensorName::scores,
                                              TensorName::attention_output,
                                              TensorName::query_gradient,
                                              TensorName::key_gradient,
                                              TensorName::value_gradient,
                                              TensorName::attention_output_gradient};
// In the order of TensorName.
inline constexpr std::array kAllTensors = [] {
  std::array<TensorName, kLinearTensors.size() + kAttentionTensors.size()> all{};
  for (std::size_t i = 0; i < all.size(); ++i) all[i] = static_cast<TensorName>(i);
  return all;
}();

constexpr bool is_of_attention(TensorName tensor) { return tensor >= TensorName::query; }

std::string_view get_name(Gemm gemm);
std::string_view get_name(TensorName tensor);
std::optional<Gemm> gemm_from_name(std::string_view name);
std::optional<TensorName> tensor_from_name(std::string_view name);

constexpr bool is_gemm_input(TensorName tensor) {
  return tensor == TensorName::activation || tensor == TensorName::weight ||
         tensor == TensorName::gradient;
}

// Returns the GEMM that produces an output tensor (first == second), or the two that consume an
// input tensor, in execution order: activation: fprop, wgrad; weight: fprop, dgrad; gradient:
// dgrad, wgrad; output: fprop; dgrad: dgrad; wgrad: wgrad. Not for tensors of an attention.
struct GemmsOfTensor {
  Gemm first;
  Gemm second;
};
GemmsOfTensor get_gemms(TensorName tensor);

// Returns true if the tensor is an operand or the result of the GEMM. Returns false for tensors of
// an attention.
bool belongs_to(TensorName tensor, Gemm gemm);

// The position of a tensor in its layer's step: forward or backward, and its order there.
struct StepOrder {
  bool backward;
  int order;
};
StepOrder get_order_in_step(TensorName tensor);

}  // namespace telens
