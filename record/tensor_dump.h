// A dumped tensor: one small HDF5 file that h5py alone can read. docs/run_file.md describes it.
// No LibTorch; HDF5 stays behind this header.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "core/base/copy_may_throw.h"

namespace telens::record {

using DumpAttribute = std::pair<std::string, std::variant<std::string, std::int64_t, double,
                                                          std::vector<std::int64_t>, CopyMayThrow>>;

// How elements are stored; codes of formats that HDF5 does not know go as uint8 and uint16.
enum class DumpType : std::uint8_t { uint8, uint16, int64, float16, float32, float64 };

struct DumpDataset {
  std::string path;  // "rowwise/codes"; groups come into being with their datasets
  DumpType type = DumpType::uint8;
  std::vector<std::uint64_t> shape;
  std::span<const std::byte> data;  // row by row, little-endian
  std::vector<DumpAttribute> attributes;
};

struct TensorDump {
  std::vector<DumpAttribute> attributes;  // the file's
  // Attributes of groups, which exist without datasets too.
  std::vector<std::pair<std::string, std::vector<DumpAttribute>>> groups;
  std::vector<DumpDataset> datasets;
  std::vector<std::pair<std::string, std::string>> links;  // a second name for a dataset
};

// <log_dir>/tensor_dumps/rank_<r>/iter_<000000>
std::string dump_folder(const std::string& log_dir, int rank, std::int64_t iteration);

// "<layer>_<tensor>" as a file may be called, without a suffix: what some file system does not
// take, and dots, become underscores. A long one is cut, with a digest of the whole before the
// tensor; the file's attributes have the names as they are.
std::string dump_name(std::string_view layer, std::string_view tensor);

// Writes <folder>/<name>.h5, or <name>.1.h5, <name>.2.h5, ... where that exists: an existing file
// is never touched, and a file has its name only once it is whole. Creates the folder. Returns the
// path. Throws RecordError that names it, and leaves nothing behind, where the disk is full or the
// folder cannot be written. Any thread.
std::string write_tensor_dump(const std::string& folder, const std::string& name,
                              const TensorDump& dump);

}  // namespace telens::record
