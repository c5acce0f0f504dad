#include "core/base/names.h"

#include <algorithm>
#include <cstddef>

namespace telens {
namespace {

constexpr std::array<std::string_view, 3> kGemmNames{"fprop", "dgrad", "wgrad"};
constexpr std::array<std::string_view, kAllTensors.size()> kTensorNames{
    "activation",
    "weight",
    "gradient",
    "output",
    "wgrad",
    "dgrad",
    "query",
    "key",
    "value",
    "scores",
    "attention_output",
    "query_gradient",
    "key_gradient",
    "value_gradient",
    "attention_output_gradient"};

template <typename Enum, std::size_t n>
std::optional<Enum> from_name(const std::array<std::string_view, n>& names, std::string_view name) {
  for (std::size_t i = 0; i < n; ++i) {
    if (names[i] == name) {
      return static_cast<Enum>(i);
    }
  }
  return std::nullopt;
}

}  // namespace

std::string_view get_name(Gemm gemm) { return kGemmNames[static_cast<std::size_t>(gemm)]; }

std::string_view get_name(TensorName tensor) {
  return kTensorNames[static_cast<std::size_t>(tensor)];
}

std::optional<Gemm> gemm_from_name(std::string_view name) {
  return from_name<Gemm>(kGemmNames, name);
}

std::optional<TensorName> tensor_from_name(std::string_view name) {
  return from_name<TensorName>(kTensorNames, name);
}

GemmsOfTensor get_gemms(TensorName tensor) {
  switch (tensor) {
    case TensorName::activation:
      return {Gemm::fprop, Gemm::wgrad};
    case TensorName::weight:
      return {Gemm::fprop, Gemm::dgrad};
    case TensorName::gradient:
      return {Gemm::dgrad, Gemm::wgrad};
    case TensorName::output:
      return {Gemm::fprop, Gemm::fprop};
    case TensorName::wgrad:
      return {Gemm::wgrad, Gemm::wgrad};
    default:
      break;
  }
  return {Gemm::dgrad, Gemm::dgrad};
}

StepOrder get_order_in_step(TensorName tensor) {
  constexpr std::array kForward{
      TensorName::weight, TensorName::activation, TensorName::output, TensorName::query,
      TensorName::key,    TensorName::value,      TensorName::scores, TensorName::attention_output};
  constexpr std::array kBackward{TensorName::gradient,       TensorName::dgrad,
                                 TensorName::wgrad,          TensorName::attention_output_gradient,
                                 TensorName::value_gradient, TensorName::key_gradient,
                                 TensorName::query_gradient};
  const auto place_in = [&](const auto& order) {
    return static_cast<int>(std::ranges::find(order, tensor) - order.begin());
  };
  const int forward = place_in(kForward);
  if (forward < std::ssize(kForward)) return {false, forward};
  return {true, place_in(kBackward)};
}

bool belongs_to(TensorName tensor, Gemm gemm) {
  if (is_of_attention(tensor)) return false;
  const GemmsOfTensor gemms = get_gemms(tensor);
  return gemms.first == gemm || gemms.second == gemm;
}

}  // namespace telens
