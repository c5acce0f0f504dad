// Closes run files that their process could not close, and takes damaged rows out of files.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "core/base/error.h"
#include "record/damage.h"

namespace telens::record {

// The result of a repair.
struct Repair {
  bool done = false;              // false: there was nothing to do
  std::uint64_t records = 0;      // that the file holds now
  std::vector<DamagedRows> lost;  // by their numbers in the file as it was
};

// Writes all that can be read into a new file beside it, down to the disk, which then takes its
// name: a process that is killed here and a disk that is full leave the file as it was. Throws
// RecordError: the file cannot be read, is being written, thinned or repaired, or the new one
// cannot be written or does not hold the same.
TELENS_EXPORT Repair repair(const std::string& path);

}  // namespace telens::record
