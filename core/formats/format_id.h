// The number formats of TELens, as values. No LibTorch.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

namespace telens {

// The order is part of the operators' schemas and of the run file: append only.
enum class FormatId : std::uint8_t { e4m3, e5m2, e2m1, e8m0, bf16, fp16, fp32 };

constexpr std::string_view get_name(FormatId format) {
  switch (format) {
    case FormatId::e4m3:
      return "E4M3";
    case FormatId::e5m2:
      return "E5M2";
    case FormatId::e2m1:
      return "E2M1";
    case FormatId::e8m0:
      return "E8M0";
    case FormatId::bf16:
      return "BF16";
    case FormatId::fp16:
      return "FP16";
    case FormatId::fp32:
      break;
  }
  return "FP32";
}

}  // namespace telens
