// Dispatch from a FormatId at run time to the format's type. No LibTorch.
#pragma once

#include <string_view>
#include <utility>

#include "core/base/error.h"
#include "core/formats/formats.h"

namespace telens {

// Calls visitor.operator()<Format>() with the format that the id names:
//   dispatch_format(id, [&]<typename Format>() { return Format::kMax; });
template <typename Visitor>
constexpr decltype(auto) dispatch_format(FormatId id, Visitor&& visitor) {
  switch (id) {
    case FormatId::e4m3:
      return std::forward<Visitor>(visitor).template operator()<E4M3>();
    case FormatId::e5m2:
      return std::forward<Visitor>(visitor).template operator()<E5M2>();
    case FormatId::e2m1:
      return std::forward<Visitor>(visitor).template operator()<E2M1>();
    case FormatId::e8m0:
      return std::forward<Visitor>(visitor).template operator()<E8M0>();
    case FormatId::bf16:
      return std::forward<Visitor>(visitor).template operator()<BF16>();
    case FormatId::fp16:
      return std::forward<Visitor>(visitor).template operator()<FP16>();
    case FormatId::fp32:
      return std::forward<Visitor>(visitor).template operator()<FP32>();
  }
  raise<UsageError>("format id {} is none of the formats of core/formats/format_id.h",
                    static_cast<int>(id));
}

// Dispatches BF16, FP16 and FP32, the formats of high-precision tensors; any other format is an
// error that names the operation.
template <typename Visitor>
constexpr decltype(auto) dispatch_high_precision_format(FormatId id, std::string_view operation,
                                                        Visitor&& visitor) {
  switch (id) {
    case FormatId::bf16:
      return std::forward<Visitor>(visitor).template operator()<BF16>();
    case FormatId::fp16:
      return std::forward<Visitor>(visitor).template operator()<FP16>();
    case FormatId::fp32:
      return std::forward<Visitor>(visitor).template operator()<FP32>();
    default:
      raise<UsageError>("{}: format is {} ({}); expected BF16, FP16 or FP32", operation,
                        get_name(id), static_cast<int>(id));
  }
}

// Dispatches the two FP8 formats; any other format is an error that names the operation.
template <typename Visitor>
constexpr decltype(auto) dispatch_fp8_format(FormatId id, std::string_view operation,
                                             Visitor&& visitor) {
  switch (id) {
    case FormatId::e4m3:
      return std::forward<Visitor>(visitor).template operator()<E4M3>();
    case FormatId::e5m2:
      return std::forward<Visitor>(visitor).template operator()<E5M2>();
    default:
      raise<UsageError>("{}: format is {} ({}); expected an FP8 format: E4M3 (0) or E5M2 (1)",
                        operation, get_name(id), static_cast<int>(id));
  }
}

// Dispatches the formats of quantized elements, including E2M1.
template <typename Visitor>
constexpr decltype(auto) dispatch_element_format(FormatId id, std::string_view operation,
                                                 Visitor&& visitor) {
  if (id == FormatId::e2m1) return std::forward<Visitor>(visitor).template operator()<E2M1>();
  return dispatch_fp8_format(id, operation, std::forward<Visitor>(visitor));
}

}  // namespace telens
