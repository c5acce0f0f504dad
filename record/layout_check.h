// Checks that a file contains exactly the objects of a run file.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "record/hdf5.h"

namespace telens::record {

// The maximum expansion of a deflate stream (zlib's manual, "Maximum Compression Ratio").
inline constexpr std::uint64_t kMaxExpansion = 1032;
// Four times the largest chunk that TELens writes.
inline constexpr std::uint64_t kMaxChunkRows = 16384;
// A quarter of the smallest packed chunk that TELens writes: a reader opens each chunk separately.
inline constexpr std::uint64_t kMinPackedRows = 256;

// Throws RecordError, with the object, the expected and the actual property, unless the file has
// exactly the objects in docs/run_file.md, each with its kind, type, shape and storage. Data that
// is read or repaired afterwards is then never in another file (external links, external storage,
// virtual datasets), never passes through unknown filters, never has two names, and is never larger
// than a file of `file_bytes` can hold. Reads no data. Returns the open datasets.
std::vector<hdf5::Handle> check_run_layout(hid_t file, std::int64_t schema_version,
                                           std::uint64_t file_bytes);

}  // namespace telens::record
