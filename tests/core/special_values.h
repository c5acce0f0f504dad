// Values at which conversions between formats go wrong, by name. The tests of every backend use all
// of them.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "core/formats/convert.h"

namespace telens::testing {

struct SpecialValue {
  std::string_view name;
  std::uint32_t bits;  // bits of the FP32 value

  constexpr SpecialValue(std::string_view its_name, float value)
      : name(its_name), bits(bits_as<std::uint32_t>(value)) {}
  constexpr SpecialValue(std::string_view its_name, std::uint32_t its_bits)
      : name(its_name), bits(its_bits) {}
};

// Positive; special_codes adds the negative ones and the neighbors.
inline constexpr auto kSpecialValues = std::to_array<SpecialValue>({
    {"zero", 0.0F},
    {"one", 1.0F},
    {"smallest subnormal of FP32", FP32::kSmallestSubnormal},
    {"largest subnormal of FP32", 0x007fffffU},
    {"smallest normal of FP32 and BF16", FP32::kSmallestNormal},
    {"smallest subnormal of BF16", BF16::kSmallestSubnormal},
    {"tie between zero and the smallest subnormal of BF16", 0x1p-134F},
    {"smallest block scale (E8M0)", E8M0::kSmallest},
    {"tie between zero and the smallest subnormal of FP16", 0x1p-25F},
    {"smallest subnormal of FP16", FP16::kSmallestSubnormal},
    {"smallest normal of FP16 and E5M2", FP16::kSmallestNormal},
    {"tie between zero and the smallest subnormal of E5M2", 0x1p-17F},
    {"smallest subnormal of E5M2", E5M2::kSmallestSubnormal},
    {"tie between the first two subnormals of E5M2", 0x1.8p-16F},
    {"tie between the largest subnormal and the smallest normal of E5M2", 0x1.cp-15F},
    {"tie between zero and the smallest subnormal of E4M3", 0x1p-10F},
    {"smallest subnormal of E4M3", E4M3::kSmallestSubnormal},
    {"tie between the first two subnormals of E4M3", 0x1.8p-9F},
    {"tie between the largest subnormal and the smallest normal of E4M3", 0x1.ep-7F},
    {"smallest normal of E4M3", E4M3::kSmallestNormal},
    {"tie between zero and the smallest subnormal of E2M1", 0.25F},
    {"smallest subnormal of E2M1", E2M1::kSmallestSubnormal},
    {"tie between the subnormal and the smallest normal of E2M1", 0.75F},
    {"tie between 1 and the next value of E4M3, to even", 1.0625F},
    {"tie above the next value of E4M3, away from it", 1.1875F},
    {"tie between 1 and the next value of E5M2, to even", 1.125F},
    {"tie between 1 and the next value of E2M1, to even", 1.25F},
    {"tie between 1 and the next value of BF16, to even", 0x1.01p0F},
    {"tie between 1 and the next value of FP16, to even", 0x1.002p0F},
    {"tie that rounds up to a power of two in E4M3", 1.9375F},
    {"tie that rounds up to a power of two in E5M2", 1.875F},
    {"tie that rounds up to a power of two in BF16", 0x1.ffp0F},
    {"tie between 4 and 6 of E2M1", 5.0F},
    {"largest of E2M1", E2M1::kMax},
    {"tie between the largest of E2M1 and the value that would follow", 7.0F},
    {"largest of E4M3", E4M3::kMax},
    {"tie between the largest of E4M3 and the value that would follow", 464.0F},
    {"value that would follow the largest of E4M3", 480.0F},
    {"largest of E5M2", E5M2::kMax},
    {"tie between the largest of E5M2 and infinity", 61440.0F},
    {"largest of FP16", FP16::kMax},
    {"tie between the largest of FP16 and infinity", 65520.0F},
    {"largest block scale (E8M0)", E8M0::kMax},
    {"largest of BF16", BF16::kMax},
    {"tie between the largest of BF16 and infinity", 0x1.ffp127F},
    {"largest of FP32", FP32::kMax},
    {"infinity", std::uint32_t{FP32::kTopExponentCode}},
    {"quiet NaN", std::uint32_t{FP32::kNanCode}},
    {"quiet NaN with a payload", 0x7fd12345U},
    {"signalling NaN", 0x7f800001U},
    {"NaN of all ones", 0x7fffffffU},
});

template <typename Format>
struct SpecialCode {
  std::string name;
  typename Format::Bits code;
};

// The special values in a format (rounded if it does not have them), and the codes before and after
// each, with both signs. NaNs that rounding would map to one code are added as codes.
template <typename Format>
std::vector<SpecialCode<Format>> special_codes() {
  using Bits = typename Format::Bits;
  std::vector<SpecialCode<Format>> codes;
  const auto add = [&](std::string_view name, Bits code) {
    codes.push_back({"+ " + std::string(name), code});
    codes.push_back({"- " + std::string(name), static_cast<Bits>(code | Format::kSignMask)});
  };
  for (const SpecialValue& value : kSpecialValues) {
    const float number = bits_as<float>(value.bits);
    const Bits code = encode<Format>(number, Saturation::non_saturating);
    add(value.name, code);
    if (code > 0) add("below " + std::string(value.name), code - 1);
    if (code < Format::kMagnitudeMask) add("above " + std::string(value.name), code + 1);
  }
  if constexpr (Format::kHasInfinity) {
    add("signalling NaN code", Format::kTopExponentCode + 1);
    add("NaN code of all ones", Format::kMagnitudeMask);
  }
  return codes;
}

}  // namespace telens::testing
