// Writes a dumped tensor: one small HDF5 file that h5py can read (docs/run_file.md). Requires
// neither LibTorch nor HDF5's headers.
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

// The storage type of elements. Codes of formats that HDF5 does not support are stored as uint8 and
// uint16.
enum class DumpType : std::uint8_t { uint8, uint16, int64, float16, float32, float64 };

struct DumpDataset {
  std::string path;  // "rowwise/codes"; groups are created as needed
  DumpType type = DumpType::uint8;
  std::vector<std::uint64_t> shape;
  std::span<const std::byte> data;  // row-major, little-endian
  std::vector<DumpAttribute> attributes;
};

struct TensorDump {
  std::vector<DumpAttribute> attributes;  // of the file
  // Groups with attributes, with or without datasets.
  std::vector<std::pair<std::string, std::vector<DumpAttribute>>> groups;
  std::vector<DumpDataset> datasets;
  std::vector<std::pair<std::string, std::string>> links;  // second names of datasets
};

// Returns <log_dir>/tensor_dumps/rank_<r>/iter_<000000>.
std::string dump_folder(const std::string& log_dir, int rank, std::int64_t iteration);

// Returns "<layer>_<tensor>" as a portable file name without a suffix. Dots and characters that
// some file systems reject become underscores. A long name is truncated, with a hash of the full
// name before the tensor; the file's attributes have the full names.
std::string dump_name(std::string_view layer, std::string_view tensor);

// Writes <folder>/<name>.h5, or <name>.1.h5, <name>.2.h5, ... if that exists. Never changes an
// existing file; a file gets its name when it is complete. Creates the folder. Returns the path.
// Throws RecordError with the path if the disk is full or the folder is not writable, and removes
// its temporary file. Thread-safe.
std::string write_tensor_dump(const std::string& folder, const std::string& name,
                              const TensorDump& dump);

}  // namespace telens::record
