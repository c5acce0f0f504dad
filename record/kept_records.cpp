#include "record/kept_records.h"

#include <atomic>
#include <cstddef>

#include "record/in_threads.h"
#include "record/packed_reader.h"

namespace telens::record {

std::vector<std::vector<Record>> read_kept_records(std::span<JoinedSegment* const> segments,
                                                   const RecordQuery& query) {
  std::vector<std::vector<Record>> records(segments.size());
  std::atomic<std::size_t> next = 0;
  run_in_threads(segments.size(), [&] {
    for (std::size_t i = next++; i < segments.size(); i = next++) {
      JoinedSegment& segment = *segments[i];
      const PackedReader stored(*segment.records, segment.damage);
      stored.read(segment.filter(query), [&](std::span<const Record> some) {
        for (const Record& row : some) records[i].push_back(segment.joined(row));
      });
    }
  });
  return records;
}

}  // namespace telens::record
