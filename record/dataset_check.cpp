#include "record/dataset_check.h"

#include <algorithm>
#include <array>
#include <span>
#include <string_view>
#include <utility>

#include "record/layout_refusal.h"
#include "record/run_layout.h"

namespace telens::record {
namespace {

constexpr std::uint64_t kMostChunkBytes = 16 << 20;

std::string_view storage_name(H5D_layout_t layout) {
  switch (layout) {
    case H5D_COMPACT:
      return "storage in its header";
    case H5D_CONTIGUOUS:
      return "storage in one piece";
    case H5D_CHUNKED:
      return "storage in chunks";
    case H5D_VIRTUAL:
      return "a virtual dataset, whose rows lie in other datasets";
    default:
      return "storage of an unknown kind";
  }
}

std::string numbers(std::span<const hsize_t> list) {
  return list.empty() ? "none" : fmt::format("{}", fmt::join(list, " x "));
}

}  // namespace

DatasetCheck::DatasetCheck(hid_t file, std::string name)
    : name_(std::move(name)),
      dataset_(hdf5::checked(H5Dopen2(file, name_.c_str(), H5P_DEFAULT), H5Dclose, name_)),
      creation_(hdf5::checked(H5Dget_create_plist(dataset_), H5Pclose, name_)) {}

void DatasetCheck::expect_storage(H5D_layout_t expected, const Filters& filters) const {
  const H5D_layout_t layout = H5Pget_layout(creation_);
  if (layout != expected) refuse(name_, storage_name(expected), storage_name(layout));
  if (const int files = H5Pget_external_count(creation_); files != 0) {
    refuse(name_, "its data in this file", "data in other files");
  }
  expect_filters(filters);
}

std::size_t DatasetCheck::expect_type(hid_t expected) const {
  const auto type = hdf5::checked(H5Dget_type(dataset_), H5Tclose, name_);
  if (H5Tcommitted(type) > 0 || H5Tequal(type, expected) <= 0) {
    refuse(name_, hdf5::description(expected) + " as docs/run_file.md lists it",
           hdf5::description(type));
  }
  return H5Tget_size(type);
}

std::size_t DatasetCheck::expect_text(std::uint64_t most_bytes) const {
  const auto type = hdf5::checked(H5Dget_type(dataset_), H5Tclose, name_);
  expect_text(type, most_bytes);
  return H5Tget_size(type);
}

std::size_t DatasetCheck::expect_pairs(std::uint64_t most_bytes) const {
  const auto type = hdf5::checked(H5Dget_type(dataset_), H5Tclose, name_);
  const bool pairs = H5Tget_class(type) == H5T_COMPOUND && H5Tget_nmembers(type) == 2 &&
                     H5Tcommitted(type) <= 0 && H5Tget_size(type) <= most_bytes;
  if (!pairs) refuse(name_, "rows of two texts", hdf5::description(type));
  std::size_t bytes = 0;
  for (const unsigned member : {0U, 1U}) {
    const auto text = hdf5::checked(H5Tget_member_type(type, member), H5Tclose, name_);
    expect_text(text, most_bytes);
    if (H5Tget_member_offset(type, member) != bytes) {
      refuse(name_, "texts one behind the other", "others");
    }
    bytes += H5Tget_size(text);
  }
  if (bytes != H5Tget_size(type)) refuse(name_, "nothing but two texts", "more bytes");
  return bytes;
}

void DatasetCheck::expect_single() const {
  const auto space = hdf5::checked(H5Dget_space(dataset_), H5Sclose, name_);
  if (H5Sget_simple_extent_type(space) != H5S_SCALAR) refuse(name_, "one value", "an array");
}

std::uint64_t DatasetCheck::expect_list() const {
  const auto space = hdf5::checked(H5Dget_space(dataset_), H5Sclose, name_);
  const int rank =
      H5Sget_simple_extent_type(space) == H5S_SIMPLE ? H5Sget_simple_extent_ndims(space) : 0;
  if (rank != 1) refuse(name_, "one dimension", fmt::format("{}", rank));
  hsize_t rows = 0;
  if (H5Sget_simple_extent_dims(space, &rows, nullptr) != 1) refuse(name_, "rows", "none");
  return rows;
}

std::uint64_t DatasetCheck::expect_chunks(std::size_t row_bytes, std::uint64_t least_rows) const {
  std::array<hsize_t, H5S_MAX_RANK> rows{};
  const int rank = H5Pget_chunk(creation_, rows.size(), rows.data());
  if (rank != 1 || rows[0] < least_rows || rows[0] > kMostChunkRows ||
      rows[0] * row_bytes > kMostChunkBytes) {
    refuse(name_, fmt::format("chunks of {} to {} rows", least_rows, kMostChunkRows),
           numbers(std::span(rows).first(std::max(rank, 0))));
  }
  return rows[0];
}

void DatasetCheck::expect_room(std::uint64_t rows, std::size_t row_bytes,
                               std::uint64_t most_bytes) const {
  if (rows > most_bytes / row_bytes) {
    refuse(name_, fmt::format("at most the {} bytes that this file can hold", most_bytes),
           fmt::format("{} rows of {} bytes", rows, row_bytes));
  }
}

void DatasetCheck::expect_text(hid_t type, std::uint64_t most_bytes) const {
  const bool text = H5Tget_class(type) == H5T_STRING && H5Tis_variable_str(type) <= 0 &&
                    H5Tcommitted(type) <= 0 && H5Tget_size(type) > 0 &&
                    H5Tget_size(type) <= most_bytes;
  if (!text) {
    refuse(name_, fmt::format("text of 1 to {} bytes", most_bytes), hdf5::description(type));
  }
}

void DatasetCheck::expect_filters(const Filters& expected) const {
  const int count = H5Pget_nfilters(creation_);
  Filters filters;
  for (int i = 0; i < count; ++i) {
    unsigned flags = 0;
    std::size_t values = 0;
    // Without filter_config: for that HDF5 would look for a plugin.
    filters.push_back(H5Pget_filter2(creation_, static_cast<unsigned>(i), &flags, &values, nullptr,
                                     0, nullptr, nullptr));
  }
  if (count < 0 || filters != expected) {
    refuse(name_, fmt::format("the filters [{}]", fmt::join(expected, ", ")),
           fmt::format("[{}]", fmt::join(filters, ", ")));
  }
}

}  // namespace telens::record
