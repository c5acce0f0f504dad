#include "record/append_table.h"

#include <vector>

#include "core/base/error.h"
#include "record/checksum.h"

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

// Rows begin, begin + 1, ... of a table that ends with them.
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

// Checksums first: every row that a reader can see has one.
void AppendTable::flush() {
  if (!dirty_) return;
  hdf5::check(H5Dflush(checksums_), name_);
  hdf5::check(H5Dflush(dataset_), name_);
  dirty_ = false;
}

}  // namespace telens::record
