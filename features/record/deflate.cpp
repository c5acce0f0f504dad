#include "features/record/deflate.h"

#include <new>

#include "core/base/error.h"

namespace telens::record {
namespace {

// zlib's input pointer is not const for historical reasons; it does not write there.
void set_buffers(z_stream& stream, std::span<const std::uint8_t> in, std::span<std::uint8_t> out) {
  stream.next_in = const_cast<Bytef*>(in.data());
  stream.avail_in = static_cast<uInt>(in.size());
  stream.next_out = out.data();
  stream.avail_out = static_cast<uInt>(out.size());
}

}  // namespace

Deflater::Deflater() {
  if (deflateInit(&stream_, Z_BEST_SPEED) != Z_OK) throw std::bad_alloc();
}

Deflater::~Deflater() { deflateEnd(&stream_); }

std::size_t Deflater::bound(std::size_t bytes) { return deflateBound(&stream_, bytes); }

std::size_t Deflater::compress(std::span<const std::uint8_t> in, std::span<std::uint8_t> out) {
  deflateReset(&stream_);
  set_buffers(stream_, in, out);
  if (deflate(&stream_, Z_FINISH) != Z_STREAM_END) {
    raise<RecordError>("cannot compress a chunk of {} bytes", in.size());
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
