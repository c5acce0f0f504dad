// An append-only HDF5 table for few rows: small uncompressed chunks, rewritten in place, so that
// flushing a partly filled one costs no space. Each row's checksum is a row of <name>_crc: one of a
// whole chunk would not match while the chunk is rewritten, and a kill may come just then.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "record/hdf5.h"

namespace telens::record {

class AppendTable {
 public:
  // Creates the dataset `name`, and the groups above it, before SWMR begins.
  AppendTable(hid_t file, const std::string& name, hdf5::Handle type, std::size_t chunk_rows);

  void append(const void* rows, std::size_t count);
  void flush();  // everything appended is in the file when it returns
  std::uint64_t rows() const { return rows_; }

 private:
  std::string name_;
  hdf5::Handle type_;
  hdf5::Handle dataset_;
  hdf5::Handle checksums_;
  std::uint64_t rows_ = 0;
  bool dirty_ = false;
};

}  // namespace telens::record
