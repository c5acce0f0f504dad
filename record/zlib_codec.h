// The checksum of everything that a run file holds outside HDF5's own structures, which have
// theirs: CRC-32 as zlib computes it.
#pragma once

#include <zlib.h>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace telens::record {

inline constexpr std::size_t kChecksumBytes = sizeof(std::uint32_t);

// Begins with the number of the row or chunk where plain CRC-32 begins with 0: a row that stands in
// another one's place does not match. In Python: zlib.crc32(bytes, number & 0xFFFFFFFF).
inline std::uint32_t checksum(std::uint64_t number, const void* bytes, std::size_t count) {
  return static_cast<std::uint32_t>(
      ::crc32_z(static_cast<std::uint32_t>(number), static_cast<const Bytef*>(bytes), count));
}

// zlib with its working memory kept from one chunk to the next: allocating it costs as much as
// compressing a tenth of a chunk.

// HDF5's shuffle filter: all first bytes of the rows, then all second bytes, and so on: one plane a
// byte. `count` and `row_bytes` are multiples of 8, as those of all our tables are.
void shuffle(const std::uint8_t* rows, std::size_t count, std::size_t row_bytes, std::uint8_t* out);

// Compresses shuffled chunks into ordinary zlib streams, each plane in a deflate block of its own.
// Planes that do not compress, such as the low bytes of a mean's mantissa, are merely stored:
// looking for repetitions in them costs half of all the time. A plane that did not compress is
// stored in the next kStoredTurns chunks and then tried again.
class PlaneDeflater {
 public:
  static constexpr std::uint8_t kStoredTurns = 15;

  PlaneDeflater(std::size_t planes, std::size_t plane_bytes);
  ~PlaneDeflater();
  PlaneDeflater(const PlaneDeflater&) = delete;
  PlaneDeflater& operator=(const PlaneDeflater&) = delete;

  std::size_t bound();  // the most that a chunk can become
  // The compressed size. `chunk` has planes * plane_bytes bytes, `out` at least bound().
  std::size_t compress(std::span<const std::uint8_t> chunk, std::span<std::uint8_t> out);

 private:
  void set_level(int level);

  std::size_t plane_bytes_;
  std::vector<std::uint8_t> stored_turns_;  // by plane: for how many chunks it is merely stored
  int level_;
  z_stream stream_{};
};

class Inflater {
 public:
  Inflater();
  ~Inflater();
  Inflater(const Inflater&) = delete;
  Inflater& operator=(const Inflater&) = delete;

  // Fills `out`; false: `in` is damaged, or holds fewer bytes.
  bool decompress(std::span<const std::uint8_t> in, std::span<std::uint8_t> out);

 private:
  z_stream stream_{};
};

}  // namespace telens::record
