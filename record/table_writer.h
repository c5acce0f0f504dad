// An append-only HDF5 table for few rows: small uncompressed chunks, rewritten in place, so that
// flushing a partly filled one costs no space. Each row's checksum is a row of <name>_crc: one of a
// whole chunk would not match while the chunk is rewritten, and a kill may come just then.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "record/hdf5.h"
#include "record/zlib_codec.h"

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

// An append-only HDF5 table for very many rows: full chunks are compressed, and the rows that do
// not fill one yet lie uncompressed in a small tail that is overwritten in place. So a slow run
// may flush as often as it likes and still pays the compressed size.
//
//   <name>           the table: whole compressed chunks (shuffle, gzip 1), then nothing. Behind its
//                    zlib stream, where zlib reads no further, each has a checksum of 4 bytes
//   <name>_tail      chunk_rows rows of the same type: those after the table's end
//   <name>_tail_crc  a checksum for each row of the tail, with the row's number in the table
//   <name>_count     how many rows there are, the tail's included; less than the table's own rows
//                    means an empty tail
//
// A reader takes the count, the tail, its checksums, then the table's length: see packed_rows.h.
// A row of the tail is written before its checksum and counted after it, so a kill between two of
// them leaves whole rows; the count itself needs no checksum, since the rows vouch for it.

// The tail of a file that is written in one go and read afterwards stays empty, and takes no space.
enum class Tail : std::uint8_t { used, empty };

class PackedTable {
 public:
  // Creates the datasets, before SWMR begins. With an empty tail there is no flush().
  PackedTable(hid_t file, const std::string& name, hdf5::Handle type, std::size_t chunk_rows,
              Tail tail = Tail::used);

  void append(const void* rows, std::size_t count);
  void flush();   // everything appended is in the file when it returns
  void finish();  // moves the tail into the table: the last call
  std::uint64_t rows() const { return packed_rows_ + pending_rows_; }

 private:
  void write_chunk(std::uint64_t rows_in_chunk);
  void write_tail();

  std::string name_;
  hdf5::Handle type_;
  std::size_t row_bytes_ = 0;
  std::size_t chunk_rows_ = 0;
  hdf5::Handle table_;
  hdf5::Handle tail_;
  hdf5::Handle tail_checksums_;
  hdf5::Handle count_;
  std::uint64_t packed_rows_ = 0;  // in whole chunks
  std::size_t pending_rows_ = 0;   // in pending_, not in a chunk yet
  std::size_t tail_rows_ = 0;      // how many of them the tail has
  bool chunks_dirty_ = false;
  std::vector<std::uint8_t> pending_;
  std::vector<std::uint8_t> shuffled_;
  std::vector<std::uint8_t> compressed_;  // and its checksum
  std::unique_ptr<PlaneDeflater> deflater_;
};

}  // namespace telens::record
