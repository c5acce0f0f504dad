// The number formats of TELens, as values. No LibTorch.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string_view>

namespace telens {

// The order is part of the operators' schemas and of the run file: append only.
enum class FormatId : std::uint8_t { e4m3, e5m2, e2m1, e8m0, bf16, fp16, fp32, e3m2, e2m3 };

struct FormatRow {
  FormatId id;
  const char* name;
  int bits;  // of a code
};

// In the order of FormatId.
inline constexpr std::array kFormatRows{
    FormatRow{FormatId::e4m3, "E4M3", 8},  FormatRow{FormatId::e5m2, "E5M2", 8},
    FormatRow{FormatId::e2m1, "E2M1", 4},  FormatRow{FormatId::e8m0, "E8M0", 8},
    FormatRow{FormatId::bf16, "BF16", 16}, FormatRow{FormatId::fp16, "FP16", 16},
    FormatRow{FormatId::fp32, "FP32", 32}, FormatRow{FormatId::e3m2, "E3M2", 6},
    FormatRow{FormatId::e2m3, "E2M3", 6}};

constexpr const FormatRow& format_row(FormatId format) {
  return kFormatRows[static_cast<std::size_t>(format)];
}
constexpr std::string_view get_name(FormatId format) {
  const bool known = static_cast<std::size_t>(format) < kFormatRows.size();
  return known ? format_row(format).name : "unknown";
}

static_assert([] {
  for (std::size_t i = 0; i < kFormatRows.size(); ++i) {
    if (kFormatRows[i].id != static_cast<FormatId>(i)) return false;
  }
  return true;
}());

}  // namespace telens
