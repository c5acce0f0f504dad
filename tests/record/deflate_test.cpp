#include "record/zlib_codec.h"

#include <gtest/gtest.h>

#include <random>
#include <vector>

namespace telens::record {
namespace {

using Bytes = std::vector<std::uint8_t>;

constexpr std::size_t kPlaneBytes = 4096;

Bytes random_bytes(std::size_t count, std::mt19937& random) {
  Bytes bytes(count);
  for (std::uint8_t& byte : bytes) byte = static_cast<std::uint8_t>(random());
  return bytes;
}

Bytes planes(std::initializer_list<Bytes> each) {
  Bytes all;
  for (const Bytes& plane : each) all.insert(all.end(), plane.begin(), plane.end());
  return all;
}

Bytes compress(PlaneDeflater& deflater, const Bytes& chunk) {
  Bytes out(deflater.bound());
  out.resize(deflater.compress(chunk, out));
  return out;
}

::testing::AssertionResult comes_back(const Bytes& compressed, const Bytes& chunk) {
  Bytes back(chunk.size());
  if (!Inflater().decompress(compressed, back)) {
    return ::testing::AssertionFailure() << "no zlib stream of " << chunk.size() << " bytes";
  }
  if (back != chunk) return ::testing::AssertionFailure() << "other bytes came back";
  return ::testing::AssertionSuccess();
}

TEST(Deflate, shuffle_stores_rows_plane_by_plane) {
  std::mt19937 random(1);
  for (const std::size_t row_bytes : {8U, 24U, 32U, 40U}) {
    const std::size_t count = 64;
    const Bytes rows = random_bytes(count * row_bytes, random);
    Bytes out(rows.size());
    shuffle(rows.data(), count, row_bytes, out.data());
    for (std::size_t row = 0; row < count; ++row) {
      for (std::size_t byte = 0; byte < row_bytes; ++byte) {
        ASSERT_EQ(out[byte * count + row], rows[row * row_bytes + byte]) << row << ", " << byte;
      }
    }
  }
}

TEST(Deflate, round_trip_with_any_stored_planes) {
  std::mt19937 random(2);
  PlaneDeflater deflater(5, kPlaneBytes);
  for (int turn = 0; turn < 40; ++turn) {
    const Bytes noise = random_bytes(kPlaneBytes, random);
    const Bytes zeros(kPlaneBytes, 0);
    // A plane that is noise in the first chunks compresses later, and vice versa.
    const Bytes chunk = turn < 20 ? planes({noise, zeros, noise, zeros, noise})
                                  : planes({zeros, noise, noise, zeros, zeros});
    ASSERT_TRUE(comes_back(compress(deflater, chunk), chunk)) << "turn " << turn;
  }
}

TEST(Deflate, incompressible_chunk_stays_within_bound) {
  std::mt19937 random(3);
  PlaneDeflater deflater(40, 1024);
  for (int turn = 0; turn < 3; ++turn) {
    const Bytes chunk = random_bytes(40 * std::size_t{1024}, random);
    const Bytes compressed = compress(deflater, chunk);
    EXPECT_TRUE(comes_back(compressed, chunk));
    EXPECT_LT(compressed.size(), chunk.size() + 40 * 32) << "turn " << turn;
  }
}

TEST(Deflate, stored_plane_is_retried_after_some_chunks) {
  std::mt19937 random(4);
  PlaneDeflater deflater(2, kPlaneBytes);
  const Bytes zeros(kPlaneBytes, 0);
  compress(deflater, planes({random_bytes(kPlaneBytes, random), zeros}));
  const Bytes quiet = planes({zeros, zeros});
  for (int turn = 0; turn < PlaneDeflater::kStoredTurns; ++turn) {
    EXPECT_GT(compress(deflater, quiet).size(), kPlaneBytes) << "stored, turn " << turn;
  }
  EXPECT_LT(compress(deflater, quiet).size(), 200U);
}

}  // namespace
}  // namespace telens::record
