// zlib with its working memory kept from one chunk to the next: allocating it costs as much as
// compressing a tenth of a chunk.
#pragma once

#include <zlib.h>

#include <cstddef>
#include <cstdint>
#include <span>

namespace telens::record {

class Deflater {
 public:
  Deflater();
  ~Deflater();
  Deflater(const Deflater&) = delete;
  Deflater& operator=(const Deflater&) = delete;

  std::size_t bound(std::size_t bytes);  // the most that `bytes` bytes can become
  // The compressed size. `out` has at least bound(in.size()) bytes.
  std::size_t compress(std::span<const std::uint8_t> in, std::span<std::uint8_t> out);

 private:
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
