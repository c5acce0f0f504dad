// The rows of a PackedTable at one moment, also while it is being written: whole compressed chunks,
// then the tail. Damaged rows are left out and logged; the others keep their numbers. See
// packed_table.h.
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
#include "record/layout_check.h"
#include "record/rows/table.h"
#include "record/zlib_codec.h"

namespace telens::record {

// Files of schema versions 1 and 2 have no checksums of ours.
enum class Checksums : std::uint8_t { none, verified };

// A file that something writes may get more rows.
enum class Growth : std::uint8_t { none, possible };

// The rows of a table in memory, as they lie in the file: enough to read them without it.
struct PackedImage {
  std::uint64_t packed_rows = 0;
  std::size_t chunk_rows = 0;
  std::vector<char> tail;  // as many rows as tail_is_intact has
  std::vector<char> tail_is_intact;
  std::vector<std::vector<std::uint8_t>> chunks;  // compressed; empty: damaged

  std::size_t bytes() const {
    std::size_t bytes = tail.size();
    for (const auto& chunk : chunks) bytes += chunk.size();
    return bytes;
  }
};

template <typename Row>
class PackedRows {
 public:
  // `damage` outlives this object.
  PackedRows(PackedImage image, DamageLog& damage)
      : checksums_(Checksums::none),  // they have been verified
        damage_(&damage),
        packed_rows_(image.packed_rows),
        chunk_rows_(image.chunk_rows),
        tail_(std::move(image.tail)),
        tail_is_intact_(std::move(image.tail_is_intact)),
        kept_chunks_(std::move(image.chunks)) {}

  // `damage` outlives this object. Throws RecordError where there is no such table.
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
    // In this order a table that grows meanwhile loses nothing: see PackedTable::flush.
    std::int64_t count = 0;
    const std::string of_count = name_ + "_count";
    const std::string of_tail = name_ + "_tail";
    const std::string of_checksums = name_ + "_tail_crc";
    read(of_count, open(of_count), H5T_NATIVE_INT64, &count);
    const auto tail = open(of_tail);
    chunk_rows_ = hdf5::row_count(tail);
    if (chunk_rows_ == 0 || chunk_rows_ > kMostChunkRows) {
      raise<RecordError>("{}_tail: expected 1 to {} rows, came {}", name_, kMostChunkRows,
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

  // With the damaged ones, as far as they are known to have been rows.
  std::uint64_t rows() const { return packed_rows_ + tail_rows(); }
  std::uint64_t packed_rows() const { return packed_rows_; }
  std::size_t chunk_rows() const { return chunk_rows_; }
  std::uint64_t chunks() const { return (packed_rows_ + chunk_rows_ - 1) / chunk_rows_; }
  const std::string& name() const { return name_; }

  void keep_first(std::uint64_t rows) {  // as if there were no others
    packed_rows_ = std::min(packed_rows_, rows);
    tail_is_intact_.resize(std::min<std::uint64_t>(tail_rows(), rows - packed_rows_));
  }

  // How many rows of a chunk are rows of the table.
  std::size_t rows_in(std::uint64_t chunk) const {
    return std::min<std::uint64_t>(chunk_rows_, packed_rows_ - chunk * chunk_rows_);
  }

  // Nothing where it would take more than `most_bytes`.
  std::optional<PackedImage> image(std::size_t most_bytes) const {
    const std::size_t tail_bytes = tail_rows() * kRowBytes;
    PackedImage image{.packed_rows = packed_rows_,
                      .chunk_rows = chunk_rows_,
                      .tail = {in_tail(0), in_tail(0) + tail_bytes},
                      .tail_is_intact = tail_is_intact_,
                      .chunks = {}};
    std::size_t bytes = tail_bytes;
    for (std::uint64_t chunk = 0; chunk < chunks() && bytes <= most_bytes; ++chunk) {
      image.chunks.push_back(compressed(chunk).value_or(std::vector<std::uint8_t>()));
      bytes += image.chunks.back().size();
    }
    if (bytes > most_bytes) return std::nullopt;
    return image;
  }

  // As it lies in the file: shuffled and compressed. Nothing for a damaged one.
  std::optional<std::vector<std::uint8_t>> compressed(std::uint64_t chunk) const {
    if (kept_chunks_) {
      const std::vector<std::uint8_t>& kept = (*kept_chunks_)[chunk];
      if (kept.empty()) return damaged(chunk);
      return kept;
    }
    const hdf5::Lock lock;
    const hsize_t offset = chunk * chunk_rows_;
    hsize_t bytes = 0;
    // A chunk whose write failed has no place in the file: 0 bytes.
    const bool found = H5Dget_chunk_storage_size(table_, &offset, &bytes) >= 0;
    if (!found || bytes <= kChecksumBytes || bytes > largest_chunk()) return damaged(chunk);
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

  // A chunk that was decompressed last by one of the functions below, or null.
  const std::vector<std::uint8_t>* find_decompressed(std::uint64_t chunk) const {
    return decompressed_ && decompressed_->first == chunk ? &decompressed_->second : nullptr;
  }

  // Logs a chunk.
  std::nullopt_t damaged(std::uint64_t chunk) const {
    damage_->add(name_, chunk * chunk_rows_, rows_in(chunk));
    return std::nullopt;
  }

  // Calls use(number, row) for the undamaged rows of a chunk or, of the one behind the last, the
  // tail.
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

  // The first and the last undamaged row, if there are any.
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

  // The same rows without their numbers.
  std::vector<Row> get_rows(std::uint64_t chunk) const {
    std::vector<Row> rows;
    get_each(chunk, [&](std::uint64_t, const Row& row) { rows.push_back(row); });
    return rows;
  }

  // How many undamaged rows there are, one behind the other, from row `begin` on.
  std::uint64_t intact_from(std::uint64_t begin) const {
    std::uint64_t next = begin;
    for (auto chunk = std::min(begin / chunk_rows_, chunks()); chunk <= chunks(); ++chunk) {
      get_each(chunk, [&](std::uint64_t number, const Row&) { next += number == next ? 1 : 0; });
    }
    return next - begin;
  }

 private:
  static constexpr std::size_t kRowBytes = kStoredBytes<Row>;

  // A chunk with its bytes still shuffled: all first bytes of its rows, all second ones, ...
  // Null for a damaged one. It is kept until the next call: a small table has no other.
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

  // ends() of one chunk, or of the tail.
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
  // A chunk that is not full is the last one, made when the file was closed: no tail follows it.
  bool has_ended_chunk() const { return packed_rows_ % chunk_rows_ != 0; }

  std::size_t tail_rows() const { return tail_is_intact_.size(); }
  const char* in_tail(std::size_t slot) const { return tail_.data() + slot * kRowBytes; }

  // zlib makes at most a little more of a chunk than the chunk.
  std::uint64_t largest_chunk() const { return 2 * chunk_rows_ * kRowBytes + 4096; }

  // Keeps those slots of the tail that are rows of the table.
  void keep_rows_of_tail(std::int64_t count, const std::vector<std::uint32_t>& checksums) {
    const std::uint64_t most = packed_rows_ + chunk_rows_;
    const bool is_possible = count >= 0 && static_cast<std::uint64_t>(count) <= most;
    if (!is_possible && checksums_ == Checksums::none) {
      raise<RecordError>("{}_count: expected 0 to {}, came {}", name_, most, count);
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
      // A kill may come between a row and its count; and a damaged count must hide no row.
      while (rows < chunk_rows_ && is_intact(rows)) ++rows;
      // A slot that holds what it held before this tail began: no row is damaged, the count is.
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
  std::vector<char> tail_is_intact_;  // for those that are rows of the table
  std::optional<std::vector<std::vector<std::uint8_t>>> kept_chunks_;  // an image has them
  mutable std::optional<std::pair<std::uint64_t, std::vector<std::uint8_t>>> decompressed_;
};

}  // namespace telens::record
