// Dispatch from a FormatId at run time to the format's type. No LibTorch.
#pragma once

#include <string_view>
#include <utility>

#include "core/base/error.h"
#include "core/formats/formats.h"

namespace telens {

// Calls visitor.operator()<Format>() with the one of `Formats` that the id names. Any other format
// is an error that names the operation and what it expects.
template <typename Format, typename... Others, typename Visitor>
constexpr decltype(auto) dispatch_among(FormatId id, std::string_view operation,
                                        std::string_view expected, Visitor&& visitor) {
  if (id == Format::kId) return std::forward<Visitor>(visitor).template operator()<Format>();
  if constexpr (sizeof...(Others) > 0) {
    return dispatch_among<Others...>(id, operation, expected, std::forward<Visitor>(visitor));
  } else {
    raise<UsageError>("{}: format is {} ({}); expected {}", operation, get_name(id),
                      static_cast<int>(id), expected);
  }
}

// Dispatches every format:
//   dispatch_format(id, [&]<typename Format>() { return Format::kMax; });
template <typename Visitor>
constexpr decltype(auto) dispatch_format(FormatId id, Visitor&& visitor) {
  return dispatch_among<E4M3, E5M2, E2M1, E8M0, BF16, FP16, FP32, E3M2, E2M3>(
      id, "dispatch_format", "one of the formats of core/formats/format_id.h",
      std::forward<Visitor>(visitor));
}

// Dispatches BF16, FP16 and FP32, the formats of high-precision tensors.
template <typename Visitor>
constexpr decltype(auto) dispatch_high_precision_format(FormatId id, std::string_view operation,
                                                        Visitor&& visitor) {
  return dispatch_among<BF16, FP16, FP32>(id, operation, "BF16, FP16 or FP32",
                                          std::forward<Visitor>(visitor));
}

// Dispatches the two FP8 formats.
template <typename Visitor>
constexpr decltype(auto) dispatch_fp8_format(FormatId id, std::string_view operation,
                                             Visitor&& visitor) {
  return dispatch_among<E4M3, E5M2>(id, operation, "an FP8 format: E4M3 (0) or E5M2 (1)",
                                    std::forward<Visitor>(visitor));
}

// Dispatches the formats of quantized elements: FP8, FP6 and FP4.
template <typename Visitor>
constexpr decltype(auto) dispatch_element_format(FormatId id, std::string_view operation,
                                                 Visitor&& visitor) {
  return dispatch_among<E4M3, E5M2, E2M1, E3M2, E2M3>(
      id, operation, "a format of quantized elements: E4M3, E5M2, E2M1, E3M2 or E2M3",
      std::forward<Visitor>(visitor));
}

}  // namespace telens
