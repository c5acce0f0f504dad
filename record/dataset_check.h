// Checks that a dataset of a file has the type, shape and storage that it has in run files. Reads
// no data.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "record/hdf5.h"

namespace telens::record {

// In their order, by HDF5's numbers.
using Filters = std::vector<H5Z_filter_t>;

// All functions throw RecordError, which names the dataset, what was expected and what came.
class DatasetCheck {
 public:
  DatasetCheck(hid_t file, std::string name);

  // In this file, and not through other filters.
  void expect_storage(H5D_layout_t expected, const Filters& filters) const;
  // The size of the dataset's elements, in bytes.
  std::size_t expect_type(hid_t expected) const;
  std::size_t expect_text(std::uint64_t most_bytes) const;
  std::size_t expect_pairs(std::uint64_t most_bytes) const;  // rows of two texts, name and value

  void expect_single() const;
  std::uint64_t expect_list() const;  // how many rows it has
  // How many rows a chunk has.
  std::uint64_t expect_chunks(std::size_t row_bytes, std::uint64_t least_rows) const;
  void expect_room(std::uint64_t rows, std::size_t row_bytes, std::uint64_t most_bytes) const;

  // The open dataset: while it is, opening it again is cheap.
  hdf5::Handle take_dataset() && { return std::move(dataset_); }

 private:
  void expect_text(hid_t type, std::uint64_t most_bytes) const;
  void expect_filters(const Filters& expected) const;

  std::string name_;
  hdf5::Handle dataset_;
  hdf5::Handle creation_;
};

}  // namespace telens::record
