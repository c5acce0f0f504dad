// Checks that a file has the objects of a run file, and no others.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "record/hdf5.h"

namespace telens::record {

// No deflate stream expands further (zlib's manual, "Maximum Compression Ratio").
inline constexpr std::uint64_t kMostExpansion = 1032;
// Four times those of the largest chunks that TELens writes.
inline constexpr std::uint64_t kMostChunkRows = 16384;
// A quarter of those of the smallest packed ones: a reader opens each chunk by itself.
inline constexpr std::uint64_t kLeastPackedRows = 256;

// Throws RecordError, which names the object, what was expected and what came, unless each object
// that docs/run_file.md names is there, of its kind, type, shape and storage, and no other object.
// So nothing that is read or repaired afterwards lies in another file (external links, external
// storage, virtual datasets), passes through filters that are not ours, is reached by two names, or
// is larger than the `file_bytes` of the file can hold. Reads no data. Returns the open datasets.
std::vector<hdf5::Handle> check_run_layout(hid_t file, std::int64_t schema_version,
                                           std::uint64_t file_bytes);

}  // namespace telens::record
