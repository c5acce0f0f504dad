// The first bytes of an HDF5 file, looked at before HDF5 is given the rest.
#pragma once

#include <string>

namespace telens::record {

// Checks the open file. Throws RecordError for what is no regular file, no HDF5 file, or one in a
// format that TELens does not write. The metadata of older formats has no checksums, so that HDF5
// takes damaged numbers in it for lengths and offsets; extensions may name drivers that open other
// files.
void check_superblock(int file, const std::string& path);

}  // namespace telens::record
