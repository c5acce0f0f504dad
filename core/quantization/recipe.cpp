#include "core/quantization/recipe.h"

namespace telens {

std::string_view get_name(Fp8Format format) {
  switch (format) {
    case Fp8Format::e4m3:
      return "E4M3";
    case Fp8Format::e5m2:
      return "E5M2";
    case Fp8Format::hybrid:
      break;
  }
  return "HYBRID";
}

std::string_view get_name(TensorRole role) {
  switch (role) {
    case TensorRole::input:
      return "input";
    case TensorRole::weight:
      return "weight";
    case TensorRole::output:
      return "output";
    case TensorRole::grad_output:
      return "grad_output";
    case TensorRole::grad_input:
      break;
  }
  return "grad_input";
}

FormatId Recipe::get_format(TensorRole role) const {
  switch (fp8_format) {
    case Fp8Format::e4m3:
      return FormatId::e4m3;
    case Fp8Format::e5m2:
      return FormatId::e5m2;
    case Fp8Format::hybrid:
      break;
  }
  return is_backward(role) ? FormatId::e5m2 : FormatId::e4m3;
}

const MMParams& Recipe::get_parameters(Gemm gemm) const {
  switch (gemm) {
    case Gemm::fprop:
      return fp8_gemm_fprop;
    case Gemm::dgrad:
      return fp8_gemm_dgrad;
    case Gemm::wgrad:
      break;
  }
  return fp8_gemm_wgrad;
}

bool Recipe::OverrideLinearPrecision::of(Gemm gemm) const {
  switch (gemm) {
    case Gemm::fprop:
      return fprop;
    case Gemm::dgrad:
      return dgrad;
    case Gemm::wgrad:
      break;
  }
  return wgrad;
}

}  // namespace telens
