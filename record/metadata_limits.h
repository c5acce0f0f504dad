// The numbers in HDF5's metadata that HDF5 takes for sizes of memory, and what they may be.
#pragma once

#include <optional>
#include <span>
#include <string>

namespace telens::record {

// Describes an error of a block of metadata, if its kind is one that says how large others are: the
// header of a B-tree, of a fractal heap (both hold the names of a group) or of an extensible array
// (where the chunks of a table lie). HDF5 allocates by these numbers before it reads anything, some
// without looking at what comes of them: nodes of 2^32 bytes take 7 GB.
std::optional<std::string> find_excess(std::span<const char> block);

}  // namespace telens::record
