// Compression and checksums of run files, with zlib.
#pragma once

#include <zlib.h>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace telens::record {

inline constexpr std::size_t kChecksumBytes = sizeof(std::uint32_t);

// The CRC-32 of all data in a run file; HDF5 checks its own structures. The CRC starts from the
// number of the row or chunk instead of 0, so that a misplaced row does not match. In
// Python: zlib.crc32(bytes, number & 0xFFFFFFFF).
inline std::uint32_t checksum(std::uint64_t number, const void* bytes, std::size_t count) {
  return static_cast<std::uint32_t>(
      ::crc32_z(static_cast<std::uint32_t>(number), static_cast<const Bytef*>(bytes), count));
}

// The classes below keep zlib's working memory between chunks: allocating it costs a tenth of the
// time of compressing a chunk.

// Applies HDF5's shuffle filter: stores the first bytes of all rows, then the second bytes, and so
// on. Such a group is called a plane. `count` and `row_bytes` must be multiples of 8.
void shuffle(const std::uint8_t* rows, std::size_t count, std::size_t row_bytes, std::uint8_t* out);

// Compresses shuffled chunks into standard zlib streams with one deflate block for each plane.
// Planes that do not compress, such as the low mantissa bytes of a mean, are stored: searching them
// for repetitions would take half of the time. An incompressible plane is stored in the next
// kStoredTurns chunks and then tried again.
class PlaneDeflater {
 public:
  static constexpr std::uint8_t kStoredTurns = 15;

  PlaneDeflater(std::size_t planes, std::size_t plane_bytes);
  ~PlaneDeflater();
  PlaneDeflater(const PlaneDeflater&) = delete;
  PlaneDeflater& operator=(const PlaneDeflater&) = delete;

  std::size_t bound();  // maximum compressed size of a chunk
  // Returns the compressed size. `chunk` has planes * plane_bytes bytes, `out` at least bound()
  // bytes.
  std::size_t compress(std::span<const std::uint8_t> chunk, std::span<std::uint8_t> out);

 private:
  void set_level(int level);

  std::size_t plane_bytes_;
  // number of chunks for which each plane is still stored
  std::vector<std::uint8_t> stored_turns_;
  int level_;
  z_stream stream_{};
};

class Inflater {
 public:
  Inflater();
  ~Inflater();
  Inflater(const Inflater&) = delete;
  Inflater& operator=(const Inflater&) = delete;

  // Fills `out`. Returns false if `in` is damaged or holds fewer bytes.
  bool decompress(std::span<const std::uint8_t> in, std::span<std::uint8_t> out);

 private:
  z_stream stream_{};
};

}  // namespace telens::record
