// The checksum of everything that a run file holds outside HDF5's own structures, which have
// theirs: CRC-32 as zlib computes it.
#pragma once

#include <zlib.h>

#include <cstddef>
#include <cstdint>

namespace telens::record {

inline constexpr std::size_t kChecksumBytes = sizeof(std::uint32_t);

// Begins with the number of the row or chunk where plain CRC-32 begins with 0: a row that stands in
// another one's place does not match. In Python: zlib.crc32(bytes, number & 0xFFFFFFFF).
inline std::uint32_t checksum(std::uint64_t number, const void* bytes, std::size_t count) {
  return static_cast<std::uint32_t>(
      ::crc32_z(static_cast<std::uint32_t>(number), static_cast<const Bytef*>(bytes), count));
}

}  // namespace telens::record
