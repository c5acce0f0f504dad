// Closes run files that their process could not close.
#pragma once

#include <cstdint>
#include <string>

#include "core/base/error.h"

namespace telens::record {

// What repair did to a file.
enum class Repair : std::uint8_t { nothing_to_do, repaired };

// Moves the tails into their tables, writes down that the file was not closed, and clears the mark
// that keeps HDF5 tools from opening it. Throws RecordError: the file is damaged, or being written.
TELENS_EXPORT Repair repair(const std::string& path);

}  // namespace telens::record
