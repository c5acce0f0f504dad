#include "record/table_writer.h"

#include <algorithm>
#include <cstring>
#include <vector>

#include "core/base/error.h"
#include "record/zlib_codec.h"

namespace telens::record {

namespace {

hdf5::Handle create_growing(hid_t file, const std::string& name, hid_t type,
                            std::size_t chunk_rows) {
  const hsize_t none = 0;
  const hsize_t unlimited = H5S_UNLIMITED;
  const hsize_t chunk = chunk_rows;
  const auto space = hdf5::checked(H5Screate_simple(1, &none, &unlimited), H5Sclose, name);
  const auto creation = hdf5::checked(H5Pcreate(H5P_DATASET_CREATE), H5Pclose, name);
  hdf5::check(H5Pset_chunk(creation, 1, &chunk), name);
  const auto links = hdf5::checked(H5Pcreate(H5P_LINK_CREATE), H5Pclose, name);
  H5Pset_create_intermediate_group(links, 1);
  return hdf5::checked(H5Dcreate2(file, name.c_str(), type, space, links, creation, H5P_DEFAULT),
                       H5Dclose, name);
}

// Appends rows, the first of which has the number `begin`.
void append_rows(hid_t dataset, hid_t type, hsize_t begin, hsize_t added, const void* rows,
                 const std::string& name) {
  const hsize_t end = begin + added;
  hdf5::check(H5Dset_extent(dataset, &end), name);
  const auto file_space = hdf5::checked(H5Dget_space(dataset), H5Sclose, name);
  const auto memory_space = hdf5::checked(H5Screate_simple(1, &added, nullptr), H5Sclose, name);
  hdf5::check(H5Sselect_hyperslab(file_space, H5S_SELECT_SET, &begin, nullptr, &added, nullptr),
              name);
  hdf5::check(H5Dwrite(dataset, type, memory_space, file_space, H5P_DEFAULT, rows), name);
}

}  // namespace

AppendTable::AppendTable(hid_t file, const std::string& name, hdf5::Handle type,
                         std::size_t chunk_rows)
    : name_(name),
      type_(std::move(type)),
      dataset_(create_growing(file, name, type_, chunk_rows)),
      checksums_(create_growing(file, name + "_crc", H5T_STD_U32LE, chunk_rows)) {}

void AppendTable::append(const void* rows, std::size_t count) {
  if (count == 0) return;
  const std::size_t row_bytes = H5Tget_size(type_);
  std::vector<std::uint32_t> checksums(count);
  for (std::size_t i = 0; i < count; ++i) {
    checksums[i] = checksum(rows_ + i, static_cast<const char*>(rows) + i * row_bytes, row_bytes);
  }
  append_rows(checksums_, H5T_NATIVE_UINT32, rows_, count, checksums.data(), name_);
  append_rows(dataset_, type_, rows_, count, rows, name_);
  rows_ += count;
  dirty_ = true;
}

// Flushes checksums first: every row that a reader can see has one.
void AppendTable::flush() {
  if (!dirty_) return;
  hdf5::check(H5Dflush(checksums_), name_);
  hdf5::check(H5Dflush(dataset_), name_);
  dirty_ = false;
}

namespace {

constexpr int kFastestCompression = 1;  // the level of PlaneDeflater

// Writes `count` elements from `begin` on to a dataset of fixed size.
void write_slots(hid_t dataset, hid_t type, hsize_t begin, hsize_t count, const void* values,
                 const std::string& name) {
  const auto file_space = hdf5::checked(H5Dget_space(dataset), H5Sclose, name);
  const auto memory_space = hdf5::checked(H5Screate_simple(1, &count, nullptr), H5Sclose, name);
  hdf5::check(H5Sselect_hyperslab(file_space, H5S_SELECT_SET, &begin, nullptr, &count, nullptr),
              name);
  hdf5::check(H5Dwrite(dataset, type, memory_space, file_space, H5P_DEFAULT, values), name);
  hdf5::check(H5Dflush(dataset), name);
}

}  // namespace

PackedTable::PackedTable(hid_t file, const std::string& name, hdf5::Handle type,
                         std::size_t chunk_rows, Tail tail)
    : name_(name), type_(std::move(type)), chunk_rows_(chunk_rows) {
  const hsize_t none = 0;
  const hsize_t unlimited = H5S_UNLIMITED;
  const hsize_t chunk = chunk_rows;
  const auto create = [&](const std::string& dataset, hid_t of, const hdf5::Handle& space,
                          const hdf5::Handle& creation) {
    return hdf5::checked(
        H5Dcreate2(file, dataset.c_str(), of, space, H5P_DEFAULT, creation, H5P_DEFAULT), H5Dclose,
        dataset);
  };
  const auto growing = hdf5::checked(H5Screate_simple(1, &none, &unlimited), H5Sclose, name_);
  const auto packed = hdf5::checked(H5Pcreate(H5P_DATASET_CREATE), H5Pclose, name_);
  hdf5::check(H5Pset_chunk(packed, 1, &chunk), name_);
  hdf5::check(H5Pset_shuffle(packed), name_);
  hdf5::check(H5Pset_deflate(packed, kFastestCompression), name_);
  table_ = create(name_, type_, growing, packed);

  // Allocated early and never moved: writing to them changes no metadata, whose order SWMR would
  // control.
  const auto fixed = hdf5::checked(H5Screate_simple(1, &chunk, nullptr), H5Sclose, name_);
  const auto single = hdf5::checked(H5Screate(H5S_SCALAR), H5Sclose, name_);
  const auto early = hdf5::checked(H5Pcreate(H5P_DATASET_CREATE), H5Pclose, name_);
  hdf5::check(H5Pset_alloc_time(early, H5D_ALLOC_TIME_EARLY), name_);
  count_ = create(name_ + "_count", H5T_NATIVE_INT64, single, early);
  if (tail == Tail::used) {
    tail_checksums_ = create(name_ + "_tail_crc", H5T_STD_U32LE, fixed, early);
    hdf5::check(H5Pset_fill_time(early, H5D_FILL_TIME_NEVER), name_);
    tail_ = create(name_ + "_tail", type_, fixed, early);
  } else {
    const auto never = hdf5::checked(H5Pcreate(H5P_DATASET_CREATE), H5Pclose, name_);
    hdf5::check(H5Pset_alloc_time(never, H5D_ALLOC_TIME_LATE), name_);
    tail_checksums_ = create(name_ + "_tail_crc", H5T_STD_U32LE, fixed, never);
    tail_ = create(name_ + "_tail", type_, fixed, never);
  }
  row_bytes_ = H5Tget_size(type_);
  pending_.resize(chunk_rows_ * row_bytes_);
  shuffled_.resize(pending_.size());
  deflater_ = std::make_unique<PlaneDeflater>(row_bytes_, chunk_rows_);
  compressed_.resize(deflater_->bound() + kChecksumBytes);
}

void PackedTable::append(const void* rows, std::size_t count) {
  const auto* from = static_cast<const std::uint8_t*>(rows);
  while (count > 0) {
    const std::size_t fitting = std::min(count, chunk_rows_ - pending_rows_);
    std::memcpy(pending_.data() + pending_rows_ * row_bytes_, from, fitting * row_bytes_);
    pending_rows_ += fitting;
    from += fitting * row_bytes_;
    count -= fitting;
    if (pending_rows_ == chunk_rows_) {
      write_chunk(chunk_rows_);
      packed_rows_ += chunk_rows_;
      pending_rows_ = 0;
      tail_rows_ = 0;
    }
  }
}

// Compresses here instead of in HDF5's filter pipeline, which would copy each chunk three times.
void PackedTable::write_chunk(std::uint64_t rows_in_chunk) {
  shuffle(pending_.data(), chunk_rows_, row_bytes_, shuffled_.data());
  const std::size_t bytes =
      deflater_->compress(shuffled_, std::span(compressed_).first(deflater_->bound()));
  const std::uint32_t sum = checksum(packed_rows_ / chunk_rows_, compressed_.data(), bytes);
  std::memcpy(compressed_.data() + bytes, &sum, kChecksumBytes);
  const hdf5::Lock lock;
  const hsize_t begin = packed_rows_;
  const hsize_t end = packed_rows_ + rows_in_chunk;
  hdf5::check(H5Dset_extent(table_, &end), name_);
  const std::uint32_t no_filter_skipped = 0;
  hdf5::check(H5Dwrite_chunk(table_, H5P_DEFAULT, no_filter_skipped, &begin, bytes + kChecksumBytes,
                             compressed_.data()),
              name_);
  chunks_dirty_ = true;
}

// Flushes chunks first: the slots of the tail may then be overwritten, and the count is updated
// last.
void PackedTable::flush() {
  const hdf5::Lock lock;
  if (chunks_dirty_) {
    hdf5::check(H5Dflush(table_), name_);
    chunks_dirty_ = false;
  }
  if (tail_rows_ != pending_rows_) write_tail();
}

void PackedTable::write_tail() {
  const std::size_t added = pending_rows_ - tail_rows_;
  const std::uint8_t* const rows_added = pending_.data() + tail_rows_ * row_bytes_;
  write_slots(tail_, type_, tail_rows_, added, rows_added, name_);
  std::vector<std::uint32_t> checksums(added);
  for (std::size_t i = 0; i < added; ++i) {
    checksums[i] = checksum(packed_rows_ + tail_rows_ + i, rows_added + i * row_bytes_, row_bytes_);
  }
  write_slots(tail_checksums_, H5T_NATIVE_UINT32, tail_rows_, added, checksums.data(), name_);
  const auto count = static_cast<std::int64_t>(rows());
  hdf5::check(H5Dwrite(count_, H5T_NATIVE_INT64, H5S_ALL, H5S_ALL, H5P_DEFAULT, &count), name_);
  hdf5::check(H5Dflush(count_), name_);
  tail_rows_ = pending_rows_;
}

void PackedTable::finish() {
  if (pending_rows_ > 0) {
    std::memset(pending_.data() + pending_rows_ * row_bytes_, 0,
                (chunk_rows_ - pending_rows_) * row_bytes_);
    write_chunk(pending_rows_);
    tail_rows_ = pending_rows_;
  }
  flush();
}

}  // namespace telens::record
