// The file driver restricts HDF5 to one file and its length.
#include "record/hdf5_guard.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <optional>
#include <string>

#include "record/metadata_check.h"
#include "tests/temporary_folder.h"

namespace telens::record {
namespace {

using testing::TemporaryFolder;

constexpr std::size_t kBytes = 4096;

std::string file_of_letters(const TemporaryFolder& folder) {
  const std::string path = (folder.path() / "letters").string();
  std::ofstream(path) << std::string(kBytes, 'a');
  return path;
}

// Returns the bytes that HDF5's driver or TELens's driver reads, or the error.
std::string get_bytes(const std::string& path, haddr_t begin, std::size_t count, bool with_ours) {
  const OpenFile opened(path);
  const hdf5::Handle access(H5Pcreate(H5P_FILE_ACCESS), H5Pclose);
  if (with_ours) set_descriptor_driver(access, opened.descriptor());
  H5FD_t* const file = H5FDopen(path.c_str(), H5F_ACC_RDONLY, access, HADDR_UNDEF);
  if (file == nullptr) return "not opened";
  H5FDset_eoa(file, H5FD_MEM_DEFAULT, begin + count);
  std::string bytes(count, 'x');
  if (H5FDread(file, H5FD_MEM_DRAW, H5P_DEFAULT, begin, count, bytes.data()) < 0) {
    bytes = hdf5::last_error();
  }
  H5FDclose(file);
  return bytes;
}

TEST(DescriptorDriver, reads_zeros_beyond_the_end) {
  const hdf5::Lock lock;
  const TemporaryFolder folder;
  const std::string path = file_of_letters(folder);
  EXPECT_EQ(get_bytes(path, 1, 3, true), "aaa");
  const std::string over_the_end = get_bytes(path, kBytes - 2, kBytes, true);
  EXPECT_EQ(over_the_end, "aa" + std::string(kBytes - 2, '\0'));
  EXPECT_EQ(over_the_end, get_bytes(path, kBytes - 2, kBytes, false));
}

TEST(DescriptorDriver, rejects_reads_longer_than_the_file) {
  const hdf5::Lock lock;
  const TemporaryFolder folder;
  const std::string path = file_of_letters(folder);
  EXPECT_EQ(get_bytes(path, 0, kBytes + 1, false).size(), kBytes + 1) << "then nothing is mended";
  EXPECT_EQ(get_bytes(path, 0, kBytes + 1, true), "a block longer than the file");
}

TEST(DescriptorDriver, reads_a_removed_file) {
  const hdf5::Lock lock;
  const TemporaryFolder folder;
  const std::string path = file_of_letters(folder);
  const OpenFile opened(path);
  std::filesystem::remove(path);
  const hdf5::Handle access(H5Pcreate(H5P_FILE_ACCESS), H5Pclose);
  set_descriptor_driver(access, opened.descriptor());
  H5FD_t* const file = H5FDopen(path.c_str(), H5F_ACC_RDONLY, access, HADDR_UNDEF);
  ASSERT_NE(file, nullptr) << hdf5::last_error();
  EXPECT_EQ(H5FDget_eof(file, H5FD_MEM_DEFAULT), kBytes);
  H5FDclose(file);
}

TEST(DescriptorDriver, rejects_writes) {
  const hdf5::Lock lock;
  const TemporaryFolder folder;
  const std::string path = file_of_letters(folder);
  const OpenFile opened(path);
  const hdf5::Handle access(H5Pcreate(H5P_FILE_ACCESS), H5Pclose);
  set_descriptor_driver(access, opened.descriptor());
  const hdf5::Handle file(H5Fopen(path.c_str(), H5F_ACC_RDWR, access), H5Fclose);
  EXPECT_LT(static_cast<hid_t>(file), 0);
  EXPECT_EQ(hdf5::last_error(), "this driver is read-only");
}

// ---- limits of metadata

std::string header_of_b_tree(std::uint32_t node_bytes, std::uint16_t record_bytes) {
  std::string header("BTHD\0\5", 6);
  header.append(reinterpret_cast<const char*>(&node_bytes), sizeof(node_bytes));
  header.append(reinterpret_cast<const char*>(&record_bytes), sizeof(record_bytes));
  return header.append(30, '\0');
}

TEST(MetadataLimits, accept_values_that_hdf5_writes) {
  EXPECT_EQ(find_size_error(header_of_b_tree(512, 11)), std::nullopt);
  EXPECT_EQ(find_size_error(header_of_b_tree(2048, 17)), std::nullopt);
}

TEST(MetadataLimits, error_names_field_and_limits) {
  EXPECT_EQ(find_size_error(header_of_b_tree(UINT32_MAX, 11)),
            "block BTHD, bytes of a node: expected 128 to 65536, got 4294967295");
  EXPECT_EQ(find_size_error(header_of_b_tree(512, 0)),
            "block BTHD, bytes of a record: expected 1 to 64, got 0");
  std::string heap = "FRHP";
  heap.resize(146);
  heap[5] = 7;
  heap[110] = 3;
  EXPECT_EQ(find_size_error(heap),
            "block FRHP, blocks in a row: expected a power of two, 1 to 64, got 3");
}

TEST(MetadataLimits, ignore_incomplete_headers) {
  EXPECT_EQ(find_size_error(header_of_b_tree(UINT32_MAX, 11).substr(0, 9)), std::nullopt);
  EXPECT_EQ(find_size_error("FHDB" + header_of_b_tree(UINT32_MAX, 11)), std::nullopt);
  EXPECT_EQ(find_size_error({}), std::nullopt);
}

}  // namespace
}  // namespace telens::record
