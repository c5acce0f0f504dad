// A hash that is the same on every machine and in every version.
#pragma once

#include <cstdint>
#include <string_view>

namespace telens {

// Of FNV with 64 bits.
inline constexpr std::uint64_t kFnvPrime = 0x100000001B3U;

// FNV-1a, 64 bits (draft-eastlake-fnv): of a million texts two have the same with a chance of 1 in
// 40 million.
constexpr std::uint64_t fnv1a(std::string_view text) {
  std::uint64_t hash = 0xCBF29CE484222325U;
  for (const char byte : text) hash = (hash ^ static_cast<unsigned char>(byte)) * kFnvPrime;
  return hash;
}

}  // namespace telens
