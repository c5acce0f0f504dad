#include "features/record/append_table.h"

#include "core/base/error.h"

namespace telens::record {

AppendTable::AppendTable(hid_t file, const std::string& name, hdf5::Handle type,
                         std::size_t chunk_rows)
    : name_(name), type_(std::move(type)) {
  const hsize_t none = 0;
  const hsize_t unlimited = H5S_UNLIMITED;
  const hsize_t chunk = chunk_rows;
  const auto space = hdf5::checked(H5Screate_simple(1, &none, &unlimited), H5Sclose, name_);
  const auto creation = hdf5::checked(H5Pcreate(H5P_DATASET_CREATE), H5Pclose, name_);
  hdf5::check(H5Pset_chunk(creation, 1, &chunk), name_);
  const auto links = hdf5::checked(H5Pcreate(H5P_LINK_CREATE), H5Pclose, name_);
  H5Pset_create_intermediate_group(links, 1);
  dataset_ = hdf5::checked(
      H5Dcreate2(file, name_.c_str(), type_, space, links, creation, H5P_DEFAULT), H5Dclose, name_);
}

AppendTable::AppendTable(hid_t file, const std::string& name)
    : name_(name),
      dataset_(hdf5::checked(H5Dopen2(file, name.c_str(), H5P_DEFAULT), H5Dclose, name)) {
  type_ = hdf5::checked(H5Dget_type(dataset_), H5Tclose, name_);
  rows_ = hdf5::row_count(dataset_);
}

void AppendTable::append(const void* rows, std::size_t count) {
  if (count == 0) return;
  const hsize_t begin = rows_;
  const hsize_t added = count;
  const hsize_t end = begin + added;
  hdf5::check(H5Dset_extent(dataset_, &end), name_);
  const auto file_space = hdf5::checked(H5Dget_space(dataset_), H5Sclose, name_);
  const auto memory_space = hdf5::checked(H5Screate_simple(1, &added, nullptr), H5Sclose, name_);
  hdf5::check(H5Sselect_hyperslab(file_space, H5S_SELECT_SET, &begin, nullptr, &added, nullptr),
              name_);
  hdf5::check(H5Dwrite(dataset_, type_, memory_space, file_space, H5P_DEFAULT, rows), name_);
  rows_ = end;
  dirty_ = true;
}

void AppendTable::flush() {
  if (!dirty_) return;
  hdf5::check(H5Dflush(dataset_), name_);
  dirty_ = false;
}

}  // namespace telens::record
