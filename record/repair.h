// Closes run files that a killed process left open, and removes damaged rows.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "core/base/error.h"
#include "record/damage.h"

namespace telens::record {

// The result of a repair.
struct Repair {
  bool done = false;              // false if the file needed no repair
  std::uint64_t records = 0;      // in the repaired file
  std::vector<DamagedRows> lost;  // numbered as in the original file
};

// Writes all readable rows into a new file, syncs it and renames it to `path`. A kill or a full
// disk leaves the original file unchanged. Throws RecordError if the file cannot be read, if a
// process writes, thins or repairs it, or if the new file cannot be written or does not hold the
// same rows.
TELENS_EXPORT Repair repair(const std::string& path);

}  // namespace telens::record
