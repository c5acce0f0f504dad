#include "record/zlib_codec.h"

#include <array>
#include <bit>
#include <cstring>
#include <new>

#include "core/base/error.h"

namespace telens::record {

namespace {

static_assert(std::endian::native == std::endian::little);
constexpr std::size_t kWord = sizeof(std::uint64_t);

// Compressing a plane is worthwhile if it saves at least 1/8.
constexpr std::size_t kMinSaving = 8;

// Transposes an 8x8 matrix of bytes whose rows are the words, in little-endian order. Swaps blocks
// of 4x4, then 2x2, then single bytes across the diagonal (Warren, "Hacker's Delight", 7-3).
void transpose(std::array<std::uint64_t, kWord>& words) {
  constexpr std::array<std::uint64_t, 3> kLowHalves{0x0000'0000'FFFF'FFFF, 0x0000'FFFF'0000'FFFF,
                                                    0x00FF'00FF'00FF'00FF};
  std::size_t distance = kWord / 2;
  for (const std::uint64_t low : kLowHalves) {
    for (std::size_t i = 0; i < kWord; ++i) {
      if ((i & distance) != 0) continue;
      const std::size_t bits = 8 * distance;
      const std::uint64_t changes = ((words[i] >> bits) ^ words[i + distance]) & low;
      words[i] ^= changes << bits;
      words[i + distance] ^= changes;
    }
    distance /= 2;
  }
}

// zlib's input pointer is not const for historical reasons; zlib does not write to it.
void set_buffers(z_stream& stream, std::span<const std::uint8_t> in, std::span<std::uint8_t> out) {
  stream.next_in = const_cast<Bytef*>(in.data());
  stream.avail_in = static_cast<uInt>(in.size());
  stream.next_out = out.data();
  stream.avail_out = static_cast<uInt>(out.size());
}

}  // namespace

void shuffle(const std::uint8_t* rows, std::size_t count, std::size_t row_bytes,
             std::uint8_t* out) {
  for (std::size_t byte = 0; byte < row_bytes; byte += kWord) {
    for (std::size_t row = 0; row < count; row += kWord) {
      std::array<std::uint64_t, kWord> words;
      for (std::size_t i = 0; i < kWord; ++i) {
        std::memcpy(&words[i], rows + (row + i) * row_bytes + byte, kWord);
      }
      transpose(words);
      for (std::size_t i = 0; i < kWord; ++i) {
        std::memcpy(out + (byte + i) * count + row, &words[i], kWord);
      }
    }
  }
}

PlaneDeflater::PlaneDeflater(std::size_t planes, std::size_t plane_bytes)
    : plane_bytes_(plane_bytes), stored_turns_(planes), level_(Z_BEST_SPEED) {
  if (deflateInit(&stream_, level_) != Z_OK) throw std::bad_alloc();
}

PlaneDeflater::~PlaneDeflater() { deflateEnd(&stream_); }

std::size_t PlaneDeflater::bound() {
  // deflateBound assumes one uninterrupted stream; ending a block early costs less than this.
  constexpr std::size_t kEndOfBlock = 16;
  return deflateBound(&stream_, stored_turns_.size() * plane_bytes_) +
         stored_turns_.size() * kEndOfBlock;
}

void PlaneDeflater::set_level(int level) {
  if (level == level_) return;
  level_ = level;
  // Ends the previous block. All of its input has been consumed.
  static_cast<void>(deflateParams(&stream_, level, Z_DEFAULT_STRATEGY));
}

std::size_t PlaneDeflater::compress(std::span<const std::uint8_t> chunk,
                                    std::span<std::uint8_t> out) {
  deflateReset(&stream_);
  set_buffers(stream_, chunk.first(0), out);
  for (std::size_t plane = 0; plane < stored_turns_.size(); ++plane) {
    const bool is_stored = stored_turns_[plane] > 0;
    set_level(is_stored ? Z_NO_COMPRESSION : Z_BEST_SPEED);
    const bool is_last = plane + 1 == stored_turns_.size();
    const auto before = stream_.total_out;
    stream_.next_in = const_cast<Bytef*>(chunk.data() + plane * plane_bytes_);
    stream_.avail_in = static_cast<uInt>(plane_bytes_);
    const int status = deflate(&stream_, is_last ? Z_FINISH : Z_BLOCK);
    if (status != (is_last ? Z_STREAM_END : Z_OK) || stream_.avail_in > 0) {
      raise<RecordError>("cannot compress a chunk of {} bytes", chunk.size());
    }
    if (is_stored) {
      --stored_turns_[plane];
    } else if (stream_.total_out - before > plane_bytes_ - plane_bytes_ / kMinSaving) {
      stored_turns_[plane] = kStoredTurns;
    }
  }
  return stream_.total_out;
}

Inflater::Inflater() {
  if (inflateInit(&stream_) != Z_OK) throw std::bad_alloc();
}

Inflater::~Inflater() { inflateEnd(&stream_); }

bool Inflater::decompress(std::span<const std::uint8_t> in, std::span<std::uint8_t> out) {
  inflateReset(&stream_);
  set_buffers(stream_, in, out);
  return inflate(&stream_, Z_FINISH) == Z_STREAM_END && stream_.avail_out == 0;
}

}  // namespace telens::record
