// The rows of a PackedTable at one moment, also while it is being written: whole compressed chunks,
// then the tail. See packed_table.h.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include "core/base/error.h"
#include "features/record/deflate.h"
#include "features/record/hdf5.h"
#include "features/record/run_rows.h"

namespace telens::record {

template <typename Row>
class PackedRows {
 public:
  // Throws RecordError.
  PackedRows(hid_t file, const std::string& name) : name_(name) {
    const hdf5::Lock lock;
    const auto open = [&](const std::string& dataset) {
      return hdf5::checked(H5Dopen2(file, dataset.c_str(), H5P_DEFAULT), H5Dclose, dataset);
    };
    // In this order a table that grows meanwhile loses nothing: see PackedTable::flush.
    std::int64_t count = 0;
    const auto count_of = open(name + "_count");
    hdf5::check(H5Dread(count_of, H5T_NATIVE_INT64, H5S_ALL, H5S_ALL, H5P_DEFAULT, &count), name);
    const auto tail = open(name + "_tail");
    const auto type = Row::type();
    chunk_rows_ = hdf5::row_count(tail);
    tail_.resize(chunk_rows_);
    hdf5::check(H5Dread(tail, type, H5S_ALL, H5S_ALL, H5P_DEFAULT, tail_.data()), name);
    table_ = open(name);
    packed_rows_ = hdf5::row_count(table_);
    const bool has_tail =
        packed_rows_ % chunk_rows_ == 0 && count > static_cast<std::int64_t>(packed_rows_);
    tail_.resize(has_tail ? std::min<std::uint64_t>(count - packed_rows_, chunk_rows_) : 0);
  }

  ~PackedRows() {
    const hdf5::Lock lock;
    table_.reset();
  }

  std::uint64_t rows() const { return packed_rows_ + tail_.size(); }
  std::uint64_t packed_rows() const { return packed_rows_; }
  std::size_t chunk_rows() const { return chunk_rows_; }
  std::uint64_t chunks() const { return (packed_rows_ + chunk_rows_ - 1) / chunk_rows_; }
  const std::vector<Row>& tail() const { return tail_; }
  const std::string& name() const { return name_; }

  void keep_first(std::uint64_t rows) {  // as if there were no others
    packed_rows_ = std::min(packed_rows_, rows);
    tail_.resize(std::min<std::uint64_t>(tail_.size(), rows - packed_rows_));
  }

  // How many rows of a chunk are rows of the table.
  std::size_t rows_in(std::uint64_t chunk) const {
    return std::min<std::uint64_t>(chunk_rows_, packed_rows_ - chunk * chunk_rows_);
  }

  // As it lies in the file: shuffled and compressed.
  std::vector<std::uint8_t> compressed(std::uint64_t chunk) const {
    const hdf5::Lock lock;
    const hsize_t offset = chunk * chunk_rows_;
    hsize_t bytes = 0;
    hdf5::check(H5Dget_chunk_storage_size(table_, &offset, &bytes), name_);
    std::vector<std::uint8_t> compressed(bytes);
    std::uint32_t skipped_filters = 0;
    hdf5::check(H5Dread_chunk(table_, H5P_DEFAULT, &offset, &skipped_filters, compressed.data()),
                name_);
    return compressed;
  }

  // The rows of a chunk, or, of the one behind the last, the tail.
  std::vector<Row> rows_of(std::uint64_t chunk) const {
    if (chunk == chunks()) return tail_;
    std::vector<std::uint8_t> planes(chunk_rows_ * sizeof(Row));
    Inflater inflater;
    if (!inflater.decompress(compressed(chunk), planes)) {
      raise<RecordError>("{}: chunk {} is damaged", name_, chunk);
    }
    std::vector<Row> rows(rows_in(chunk));
    std::vector<std::uint8_t> bytes(sizeof(Row));
    for (std::size_t row = 0; row < rows.size(); ++row) {
      for (std::size_t b = 0; b < sizeof(Row); ++b) bytes[b] = planes[b * chunk_rows_ + row];
      std::memcpy(&rows[row], bytes.data(), sizeof(Row));
    }
    return rows;
  }

 private:
  std::string name_;
  hdf5::Handle table_;
  std::uint64_t packed_rows_ = 0;
  std::size_t chunk_rows_ = 0;
  std::vector<Row> tail_;
};

}  // namespace telens::record
