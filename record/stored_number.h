// Unsigned numbers as HDF5 stores them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>

namespace telens::record {

inline constexpr std::size_t kAddressBytes = 8;  // in files of TELens; a length has as many

// The number at `begin`, of at most 8 bytes; 0 where the block ends before it.
inline std::uint64_t stored_number(std::span<const char> block, std::size_t begin,
                                   std::size_t bytes) {
  std::uint64_t value = 0;
  if (begin <= block.size() && bytes <= block.size() - begin) {
    std::memcpy(&value, block.data() + begin, bytes);  // both are little-endian
  }
  return value;
}

}  // namespace telens::record
