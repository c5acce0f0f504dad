// Reads a PackedTable (table_writer.h) as a snapshot, even while it is written: whole compressed
// chunks, then the tail. Damaged rows are skipped and logged; the other rows keep their numbers.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "core/base/error.h"
#include "record/damage.h"
#include "record/hdf5.h"
#include "record/hdf5_guard.h"
#include "record/rows/table.h"
#include "record/zlib_codec.h"

namespace telens::record {

// Files of schema versions 1 and 2 have no checksums for rows.
enum class Checksums : std::uint8_t { none, verified };

// Whether the file may grow because a process is writing it.
enum class Growth : std::uint8_t { none, possible };

// The stored bytes of a table in memory, from which its rows can be read without the file.
struct PackedImage {
  std::uint64_t packed_rows = 0;
  std::size_t chunk_rows = 0;
  std::vector<char> tail;  // one row for each element of tail_is_intact
  std::vector<char> tail_is_intact;
  std::vector<std::vector<std::uint8_t>> chunks;  // compressed; a damaged chunk is empty

  std::size_t bytes() const {
    std::size_t bytes = tail.size();
    for (const auto& chunk : chunks) bytes += chunk.size();
    return bytes;
  }
};

template <typename Row>
class PackedRows {
 public:
  // `damage` must outlive this object.
  PackedRows(PackedImage image, DamageLog& damage)
      : checksums_(Checksums::none),  // already verified
        damage_(&damage),
        packed_rows_(image.packed_rows),
        chunk_rows_(image.chunk_rows),
        tail_(std::move(image.tail)),
        tail_is_intact_(std::move(image.tail_is_intact)),
        kept_chunks_(std::move(image.chunks)) {}

  // `damage` must outlive this object. Throws RecordError if the table does not exist.
  PackedRows(hid_t file, Checksums checksums, DamageLog& damage, Growth growth)
      : checksums_(checksums), damage_(&damage) {
    const hdf5::Lock lock;
    const auto open = [&](const std::string& dataset) {
      return hdf5::checked(H5Dopen2(file, dataset.c_str(), H5P_DEFAULT), H5Dclose, dataset);
    };
    const auto read = [&](const std::string& dataset, const hdf5::Handle& opened, hid_t type,
                          void* values) {
      hdf5::check(H5Dread(opened, type, H5S_ALL, H5S_ALL, H5P_DEFAULT, values), dataset);
    };
    // This order loses no row if the table grows meanwhile: see PackedTable::flush.
    std::int64_t count = 0;
    const std::string of_count = name_ + "_count";
    const std::string of_tail = name_ + "_tail";
    const std::string of_checksums = name_ + "_tail_crc";
    read(of_count, open(of_count), H5T_NATIVE_INT64, &count);
    const auto tail = open(of_tail);
    chunk_rows_ = hdf5::row_count(tail);
    if (chunk_rows_ == 0 || chunk_rows_ > kMaxChunkRows) {
      raise<RecordError>("{}_tail: expected 1 to {} rows, got {}", name_, kMaxChunkRows,
                         chunk_rows_);
    }
    if (growth == Growth::none) open_table(open);
    std::vector<std::uint32_t> tail_checksums;
    if (growth == Growth::possible || !has_ended_chunk()) {
      tail_.resize(chunk_rows_ * kRowBytes);
      read(of_tail, tail, row_type<Row>(), tail_.data());
      if (checksums_ == Checksums::verified) {
        tail_checksums.resize(chunk_rows_);
        read(of_checksums, open(of_checksums), H5T_NATIVE_UINT32, tail_checksums.data());
      }
    }
    if (growth == Growth::possible) open_table(open);
    keep_rows_of_tail(count, tail_checksums);
  }

  ~PackedRows() {
    const hdf5::Lock lock;
    table_.reset();
  }

  // Includes damaged rows if they are known to have been rows.
  std::uint64_t rows() const { return packed_rows_ + tail_rows(); }
  std::uint64_t packed_rows() const { return packed_rows_; }
  std::size_t chunk_rows() const { return chunk_rows_; }
  std::uint64_t chunks() const { return (packed_rows_ + chunk_rows_ - 1) / chunk_rows_; }
  const std::string& name() const { return name_; }

  void truncate(std::uint64_t rows) {  // hides all later rows
    packed_rows_ = std::min(packed_rows_, rows);
    tail_is_intact_.resize(std::min<std::uint64_t>(tail_rows(), rows - packed_rows_));
  }

  // Returns how many rows of a chunk are rows of the table.
  std::size_t rows_in(std::uint64_t chunk) const {
    return std::min<std::uint64_t>(chunk_rows_, packed_rows_ - chunk * chunk_rows_);
  }

  // Returns nullopt if the image would take more than `max_bytes`.
  std::optional<PackedImage> image(std::size_t max_bytes) const {
    const std::size_t tail_bytes = tail_rows() * kRowBytes;
    PackedImage image{.packed_rows = packed_rows_,
                      .chunk_rows = chunk_rows_,
                      .tail = {in_tail(0), in_tail(0) + tail_bytes},
                      .tail_is_intact = tail_is_intact_,
                      .chunks = {}};
    std::size_t bytes = tail_bytes;
    for (std::uint64_t chunk = 0; chunk < chunks() && bytes <= max_bytes; ++chunk) {
      image.chunks.push_back(compressed(chunk).value_or(std::vector<std::uint8_t>()));
      bytes += image.chunks.back().size();
    }
    if (bytes > max_bytes) return std::nullopt;
    return image;
  }

  // Returns a chunk as stored: shuffled and compressed. Returns nullopt if it is damaged.
  std::optional<std::vector<std::uint8_t>> compressed(std::uint64_t chunk) const {
    if (kept_chunks_) {
      const std::vector<std::uint8_t>& kept = (*kept_chunks_)[chunk];
      if (kept.empty()) return damaged(chunk);
      return kept;
    }
    const hdf5::Lock lock;
    const hsize_t offset = chunk * chunk_rows_;
    hsize_t bytes = 0;
    // A chunk whose write failed has 0 bytes in the file.
    const bool found = H5Dget_chunk_storage_size(table_, &offset, &bytes) >= 0;
    if (!found || bytes <= kChecksumBytes || bytes > max_chunk_bytes()) return damaged(chunk);
    std::vector<std::uint8_t> compressed(bytes);
    std::uint32_t skipped_filters = 0;
    if (H5Dread_chunk(table_, H5P_DEFAULT, &offset, &skipped_filters, compressed.data()) < 0) {
      return damaged(chunk);
    }
    if (checksums_ == Checksums::none) return compressed;
    std::uint32_t sum = 0;
    std::memcpy(&sum, compressed.data() + bytes - kChecksumBytes, kChecksumBytes);
    compressed.resize(bytes - kChecksumBytes);
    if (sum != checksum(chunk, compressed.data(), compressed.size())) return damaged(chunk);
    return compressed;
  }

  // Returns the chunk if it is the last one that the functions below decompressed, else nullptr.
  const std::vector<std::uint8_t>* find_decompressed(std::uint64_t chunk) const {
    return decompressed_ && decompressed_->first == chunk ? &decompressed_->second : nullptr;
  }

  // Logs a damaged chunk.
  std::nullopt_t damaged(std::uint64_t chunk) const {
    damage_->add(name_, chunk * chunk_rows_, rows_in(chunk));
    return std::nullopt;
  }

  // Calls use(number, row) for each undamaged row of a chunk. The index after the last chunk means
  // the tail.
  template <typename Use>
  void get_each(std::uint64_t chunk, Use use) const {
    if (chunk == chunks()) {
      for (std::size_t slot = 0; slot < tail_rows(); ++slot) {
        if (tail_is_intact_[slot] != 0) use(packed_rows_ + slot, load<Row>(in_tail(slot)));
      }
      return;
    }
    const auto* planes = decompressed(chunk);
    if (planes == nullptr) return;
    for (std::size_t i = 0; i < rows_in(chunk); ++i) {
      use(chunk * chunk_rows_ + i, row_in(*planes, i));
    }
  }

  // Returns the first and the last undamaged row, or nullopt if there are none.
  std::optional<std::pair<Row, Row>> ends() const {
    std::optional<std::pair<Row, Row>> ends;
    std::uint64_t chunk = 0;
    for (; chunk <= chunks() && !ends; ++chunk) ends = get_ends(chunk);
    for (std::uint64_t later = chunks() + 1; later-- > chunk;) {
      const auto last = get_ends(later);
      if (!last) continue;
      ends->second = last->second;
      break;
    }
    return ends;
  }

  // Like get_each(), but returns the rows.
  std::vector<Row> get_rows(std::uint64_t chunk) const {
    std::vector<Row> rows;
    get_each(chunk, [&](std::uint64_t, const Row& row) { rows.push_back(row); });
    return rows;
  }

  // Returns the number of consecutive undamaged rows from row `begin` on.
  std::uint64_t count_intact_from(std::uint64_t begin) const {
    std::uint64_t next = begin;
    for (auto chunk = std::min(begin / chunk_rows_, chunks()); chunk <= chunks(); ++chunk) {
      get_each(chunk, [&](std::uint64_t number, const Row&) { next += number == next ? 1 : 0; });
    }
    return next - begin;
  }

 private:
  static constexpr std::size_t kRowBytes = kStoredBytes<Row>;

  // Returns a decompressed chunk that is still shuffled, or nullptr if it is damaged. The result is
  // cached until the next call: a small table has only one chunk.
  const std::vector<std::uint8_t>* decompressed(std::uint64_t chunk) const {
    if (const auto* planes = find_decompressed(chunk)) return planes;
    const auto bytes = compressed(chunk);
    if (!bytes) return nullptr;
    std::vector<std::uint8_t> planes(chunk_rows_ * kRowBytes);
    Inflater inflater;
    if (!inflater.decompress(*bytes, planes)) {
      damaged(chunk);
      return nullptr;
    }
    decompressed_.emplace(chunk, std::move(planes));
    return &decompressed_->second;
  }

  Row row_in(const std::vector<std::uint8_t>& planes, std::size_t row) const {
    std::array<char, kRowBytes> bytes;
    for (std::size_t b = 0; b < kRowBytes; ++b) {
      bytes[b] = static_cast<char>(planes[b * chunk_rows_ + row]);
    }
    return load<Row>(bytes.data());
  }

  // ends() for one chunk or for the tail.
  std::optional<std::pair<Row, Row>> get_ends(std::uint64_t chunk) const {
    if (chunk < chunks()) {
      const auto* planes = decompressed(chunk);
      if (planes == nullptr) return std::nullopt;
      return std::pair(row_in(*planes, 0), row_in(*planes, rows_in(chunk) - 1));
    }
    std::optional<std::pair<Row, Row>> ends;
    get_each(chunk, [&](std::uint64_t, const Row& row) {
      if (!ends) ends.emplace(row, row);
      ends->second = row;
    });
    return ends;
  }

  template <typename Open>
  void open_table(const Open& open) {
    table_ = open(name_);
    packed_rows_ = hdf5::row_count(table_);
  }
  // Only the last chunk of a closed file can be partly filled; no tail follows it.
  bool has_ended_chunk() const { return packed_rows_ % chunk_rows_ != 0; }

  std::size_t tail_rows() const { return tail_is_intact_.size(); }
  const char* in_tail(std::size_t slot) const { return tail_.data() + slot * kRowBytes; }

  // zlib adds only a little to incompressible data.
  std::uint64_t max_chunk_bytes() const { return 2 * chunk_rows_ * kRowBytes + 4096; }

  // Determines which slots of the tail are rows of the table.
  void keep_rows_of_tail(std::int64_t count, const std::vector<std::uint32_t>& checksums) {
    const std::uint64_t most = packed_rows_ + chunk_rows_;
    const bool is_possible = count >= 0 && static_cast<std::uint64_t>(count) <= most;
    if (!is_possible && checksums_ == Checksums::none) {
      raise<RecordError>("{}_count: expected 0 to {}, got {}", name_, most, count);
    }
    if (!is_possible) damage_->add(name_ + "_count", 0, 1);
    std::size_t rows = 0;
    const bool can_have_tail = !has_ended_chunk();
    if (can_have_tail && is_possible && static_cast<std::uint64_t>(count) > packed_rows_) {
      rows = static_cast<std::uint64_t>(count) - packed_rows_;
    }
    if (checksums_ == Checksums::verified && can_have_tail) {
      const auto is_row = [&](std::size_t slot, std::uint64_t number) {
        return checksums[slot] == checksum(number, in_tail(slot), kRowBytes);
      };
      const auto is_intact = [&](std::size_t slot) { return is_row(slot, packed_rows_ + slot); };
      // The process may be killed between writing a row and its count, and a damaged count must not
      // hide rows.
      while (rows < chunk_rows_ && is_intact(rows)) ++rows;
      // True if a slot is unchanged since before this tail began: the count is damaged, not
      // the row.
      const auto is_unused = [&](std::size_t slot) {
        const bool has_old_row =
            packed_rows_ > 0 && is_row(slot, packed_rows_ - chunk_rows_ + slot);
        const std::array<char, kRowBytes> blank{};
        const bool is_blank =
            checksums[slot] == 0 && std::memcmp(in_tail(slot), blank.data(), kRowBytes) == 0;
        return has_old_row || is_blank;
      };
      if (rows > 0 && is_unused(rows - 1)) damage_->add(name_ + "_count", 0, 1);
      while (rows > 0 && is_unused(rows - 1)) --rows;
      for (std::size_t slot = 0; slot < rows; ++slot) {
        tail_is_intact_.push_back(static_cast<char>(is_intact(slot)));
        if (!is_intact(slot)) damage_->add(name_, packed_rows_ + slot, 1);
      }
    }
    tail_is_intact_.resize(rows, 1);
  }

  const std::string name_{Row::kTable.name};
  Checksums checksums_;
  DamageLog* damage_;
  hdf5::Handle table_;
  std::uint64_t packed_rows_ = 0;
  std::size_t chunk_rows_ = 0;
  std::vector<char> tail_;            // chunk_rows_ stored rows
  std::vector<char> tail_is_intact_;  // one element for each row of the table in the tail
  // set if constructed from an image
  std::optional<std::vector<std::vector<std::uint8_t>>> kept_chunks_;
  mutable std::optional<std::pair<std::uint64_t, std::vector<std::uint8_t>>> decompressed_;
};

}  // namespace telens::record
