// Changes the bytes of a run file directly.
#pragma once

#include <hdf5.h>

#include <cstddef>
#include <cstdint>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "record/hdf5.h"

namespace telens::record {

inline std::string get_bytes(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

inline void write_bytes(const std::string& path, const std::string& bytes) {
  std::ofstream(path, std::ios::binary)
      .write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
}

inline void flip_bits(const std::string& path, std::uint64_t at, char bits = 0x10) {
  std::string bytes = get_bytes(path);
  bytes.at(at) = static_cast<char>(bytes.at(at) ^ bits);
  write_bytes(path, bytes);
}

// Returns the offset of a dataset in the file, or of one of its chunks.
inline std::uint64_t get_offset(const std::string& path, const char* name, hsize_t chunk = 0) {
  const hdf5::Lock lock;
  const hdf5::Handle access(H5Pcreate(H5P_FILE_ACCESS), H5Pclose);
  const hdf5::Handle file(H5Fopen(path.c_str(), H5F_ACC_RDONLY | H5F_ACC_SWMR_READ, access),
                          H5Fclose);
  const hdf5::Handle dataset(H5Dopen2(file, name, H5P_DEFAULT), H5Dclose);
  const haddr_t contiguous = H5Dget_offset(dataset);
  if (contiguous != HADDR_UNDEF) return contiguous;
  haddr_t address = HADDR_UNDEF;
  unsigned mask = 0;
  hsize_t bytes = 0, offset = 0;
  H5Dget_chunk_info(dataset, hdf5::Handle(H5Dget_space(dataset), H5Sclose), chunk, &offset, &mask,
                    &address, &bytes);
  return address;
}

// Resizes a table of a closed file.
inline void resize_table(const std::string& path, const char* name, hsize_t rows) {
  const hdf5::Lock lock;
  const hdf5::Handle file(H5Fopen(path.c_str(), H5F_ACC_RDWR, H5P_DEFAULT), H5Fclose);
  const hdf5::Handle dataset(H5Dopen2(file, name, H5P_DEFAULT), H5Dclose);
  hdf5::check(H5Dset_extent(dataset, &rows), name);
}

// Copies a stored chunk of a closed file to the place of another. Chunks are given by their first
// rows.
inline void repeat_chunk(const std::string& path, const char* name, hsize_t from, hsize_t to) {
  const hdf5::Lock lock;
  const hdf5::Handle file(H5Fopen(path.c_str(), H5F_ACC_RDWR, H5P_DEFAULT), H5Fclose);
  const hdf5::Handle dataset(H5Dopen2(file, name, H5P_DEFAULT), H5Dclose);
  hsize_t bytes = 0;
  hdf5::check(H5Dget_chunk_storage_size(dataset, &from, &bytes), name);
  std::vector<char> chunk(bytes);
  std::uint32_t mask = 0;
  hdf5::check(H5Dread_chunk(dataset, H5P_DEFAULT, &from, &mask, chunk.data()), name);
  hdf5::check(H5Dwrite_chunk(dataset, H5P_DEFAULT, mask, &to, bytes, chunk.data()), name);
}

}  // namespace telens::record
