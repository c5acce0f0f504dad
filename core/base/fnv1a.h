// A hash that is the same on every machine and in every version of TELens.
#pragma once

#include <cstdint>
#include <string_view>

namespace telens {

// The prime of FNV with 64 bits.
inline constexpr std::uint64_t kFnvPrime = 0x100000001B3U;

// FNV-1a, 64 bits (draft-eastlake-fnv). The chance of a collision among a million texts is 1 in 40
// million.
constexpr std::uint64_t fnv1a(std::string_view text) {
  std::uint64_t hash = 0xCBF29CE484222325U;
  for (const char byte : text) hash = (hash ^ static_cast<unsigned char>(byte)) * kFnvPrime;
  return hash;
}

// Combines two hashes; the order matters. The factor is 2^64 divided by the golden ratio, rounded
// to an odd number, as in Fibonacci hashing (Knuth, "The Art of Computer Programming", vol.
// 3, 6.4).
constexpr std::uint64_t mixed(std::uint64_t hash, std::uint64_t next) {
  const std::uint64_t product = (hash ^ next) * 0x9E3779B97F4A7C15U + next;
  return product ^ (product >> 32);
}

}  // namespace telens
