// Writes the tables of a run file, plain (AppendTable) and compressed (PackedTable).
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "record/hdf5.h"
#include "record/zlib_codec.h"

namespace telens::record {

// An append-only table for few rows: small uncompressed chunks that are rewritten in place, so that
// flushing a partly filled chunk takes no space. <name>_crc has a checksum for each row: the
// checksum of a whole chunk would not match if the process were killed while it rewrites the chunk.
class AppendTable {
 public:
  // Creates the dataset `name` and its parent groups. Must be called before SWMR begins.
  AppendTable(hid_t file, const std::string& name, hdf5::Handle type, std::size_t chunk_rows);

  void append(const void* rows, std::size_t count);
  void flush();  // everything appended is in the file on return
  std::uint64_t rows() const { return rows_; }

 private:
  std::string name_;
  hdf5::Handle type_;
  hdf5::Handle dataset_;
  hdf5::Handle checksums_;
  std::uint64_t rows_ = 0;
  bool dirty_ = false;
};

// An append-only table for very many rows. Full chunks are compressed. The remaining rows are
// stored uncompressed in a small tail that is overwritten in place, so that frequent flushes do not
// increase the size of the file.
//
//   <name>           whole compressed chunks (shuffle, gzip 1). A checksum of 4 bytes follows the
//                    zlib stream of each chunk, where zlib does not read
//   <name>_tail      chunk_rows rows of the same type: those after the table's end
//   <name>_tail_crc  a checksum for each row of the tail, with the row's number in the table
//   <name>_count     the number of rows, including the tail. The tail is empty if the count is
//                    less than the table's own rows
//
// A reader reads the count, the tail, its checksums, then the table's length (packed_rows.h). A row
// of the tail is written before its checksum and counted after it, so a kill in between leaves
// whole rows. The count needs no checksum, because the rows have theirs.

// The tail of a file that is written at once and read afterwards stays empty and takes no space.
enum class Tail : std::uint8_t { used, empty };

class PackedTable {
 public:
  // Creates the datasets. Must be called before SWMR begins. flush() requires Tail::used.
  PackedTable(hid_t file, const std::string& name, hdf5::Handle type, std::size_t chunk_rows,
              Tail tail = Tail::used);

  void append(const void* rows, std::size_t count);
  void flush();   // everything appended is in the file on return
  void finish();  // moves the tail into the table; must be the last call
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
  std::size_t tail_rows_ = 0;      // pending rows that are in the tail
  bool chunks_dirty_ = false;
  std::vector<std::uint8_t> pending_;
  std::vector<std::uint8_t> shuffled_;
  std::vector<std::uint8_t> compressed_;  // including the checksum
  std::unique_ptr<PlaneDeflater> deflater_;
};

}  // namespace telens::record
