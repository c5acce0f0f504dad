// Writes what is left of one ended file of a run into a new one: all of it, or some records.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "record/segment_reader.h"
#include "record/segment_writer.h"

namespace telens::record {

class SegmentCopy {
 public:
  // Creates the file `path`, with the names of `original`, which outlives this object.
  SegmentCopy(const SegmentReader& original, const std::string& path,
              const SegmentContext& context);
  ~SegmentCopy();
  SegmentCopy(const SegmentCopy&) = delete;
  SegmentCopy& operator=(const SegmentCopy&) = delete;

  using Keeps = std::function<bool(const Record&)>;
  // The kept records of the next `chunks` chunks with their histograms; false: there are no more.
  bool copy_records(std::uint64_t chunks, const Keeps& keeps);
  // The last call: drops, the events of `rest`, and of all other tables the rows; of those that are
  // thinned (Table::is_thinned) the ones in kept iterations.
  using KeepsIteration = std::function<bool(std::int64_t iteration)>;
  void finish(Batch rest, const KeepsIteration& keeps, const RunEnd& end);

  // An event of a kind, whose words come behind those of the original.
  void add_event(Batch& batch, std::string_view kind, std::string_view text,
                 std::int64_t iteration) const;

 private:
  void add_bins(Batch& batch, std::uint64_t row, std::int64_t new_row);
  template <typename Row>
  void copy_rows(const KeepsIteration& keeps);

  const SegmentReader& original_;
  std::unique_ptr<PackedRows<BinRow>> bins_;
  std::unique_ptr<SegmentWriter> copy_;
  std::uint64_t next_chunk_ = 0;

  // Where the bins are.
  std::vector<BinRow> piece_of_bins_;
  std::uint64_t next_bins_ = 0;
  std::size_t next_bin_ = 0;
};

}  // namespace telens::record
