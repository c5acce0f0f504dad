#include "core/ops/checks.h"

namespace telens::ops {

FormatId check_high_precision(std::string_view operation, std::string_view argument,
                              at::ScalarType dtype) {
  switch (dtype) {
    case at::kBFloat16:
      return FormatId::bf16;
    case at::kHalf:
      return FormatId::fp16;
    case at::kFloat:
      return FormatId::fp32;
    default:
      raise<ShapeError>("{}: {} has dtype {}; expected BFloat16, Half or Float; convert it first",
                        operation, argument, c10::toString(dtype));
  }
}

void check_one_float(std::string_view operation, std::string_view argument,
                     const at::Tensor& tensor, const at::Tensor& reference) {
  if (tensor.scalar_type() != at::kFloat || tensor.numel() != 1) {
    raise<ShapeError>("{}: {} has dtype {} and {} elements; expected Float with 1 element",
                      operation, argument, c10::toString(tensor.scalar_type()), tensor.numel());
  }
  if (tensor.device() != reference.device()) {
    raise<ShapeError>("{}: {} is on {} and the tensor on {}; move one of them", operation, argument,
                      tensor.device().str(), reference.device().str());
  }
}

FormatId check_fp8_format(std::string_view operation, std::int64_t format) {
  for (const FormatId fp8 : {FormatId::e4m3, FormatId::e5m2}) {
    if (format == static_cast<std::int64_t>(fp8)) return fp8;
  }
  raise<UsageError>("{}: format is {}; expected an FP8 format: E4M3 (0) or E5M2 (1)", operation,
                    format);
}

}  // namespace telens::ops
