// Records of files that a reader keeps in memory.
#pragma once

#include <span>
#include <vector>

#include "record/joined_segment.h"

namespace telens::record {

// Those that match, with the ids of the reader, of each file. Several threads decompress them.
// `records` of each segment has a value.
std::vector<std::vector<Record>> read_kept_records(std::span<JoinedSegment* const> segments,
                                                   const RecordQuery& query);

}  // namespace telens::record
