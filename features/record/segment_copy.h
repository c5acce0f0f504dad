// Writes what is left of one ended file of a run into a new one: all of it, or some records.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "features/record/segment_reader.h"
#include "features/record/segment_writer.h"

namespace telens::record {

class SegmentCopy {
 public:
  // Creates the file `path`, with the names of `original`, which outlives this object.
  SegmentCopy(const SegmentReader& original, const std::string& path,
              const SegmentContext& context);
  ~SegmentCopy();
  SegmentCopy(const SegmentCopy&) = delete;
  SegmentCopy& operator=(const SegmentCopy&) = delete;

  using Keeps = std::function<bool(const StoredRecord&)>;
  // The kept records of the next `chunks` chunks with their histograms; false: there are no more.
  bool copy_records(std::uint64_t chunks, const Keeps& keeps);
  // The last call: all scalars, ledger rows and drops, the kept blocks, and the events of `rest`.
  using KeepsBlock = std::function<bool(const StoredBlock&)>;
  void finish(Batch rest, const KeepsBlock& keeps, const RunEnd& end);

  // An event of a kind, whose words come behind those of the original.
  void add_event(Batch& batch, std::string_view kind, std::string_view text,
                 std::int64_t iteration) const;

 private:
  void add_bins(Batch& batch, std::uint64_t row, std::int64_t new_row);
  void copy_ledger();
  void copy_blocks(const KeepsBlock& keeps);

  const SegmentReader& original_;
  std::unique_ptr<PackedRows<StoredBin>> bins_;
  std::unique_ptr<SegmentWriter> copy_;
  std::uint64_t next_chunk_ = 0;

  // Where the bins are.
  std::vector<StoredBin> piece_of_bins_;
  std::uint64_t next_bins_ = 0;
  std::size_t next_bin_ = 0;
};

}  // namespace telens::record
