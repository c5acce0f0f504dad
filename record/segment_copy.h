// Copies one ended file of a run into a new file: all records or a selection.
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
  // Creates the file `path` with the names of `original`, which must outlive this object.
  SegmentCopy(const SegmentReader& original, const std::string& path,
              const SegmentContext& context);
  ~SegmentCopy();
  SegmentCopy(const SegmentCopy&) = delete;
  SegmentCopy& operator=(const SegmentCopy&) = delete;

  using Keeps = std::function<bool(const Record&)>;
  // Copies the selected records of the next `chunks` chunks and their histograms. Returns false if
  // none are left.
  bool copy_records(std::uint64_t chunks, const Keeps& keeps);
  // Copies the drops and all other tables; tables that are thinned (Table::is_thinned) only in
  // selected iterations. Also writes `rest`, which has the events. Must be the last call.
  using KeepsIteration = std::function<bool(std::int64_t iteration)>;
  void finish(Batch rest, const KeepsIteration& keeps, const RunEnd& end);

  // Adds an event to the batch. Its words get ids after the original's words.
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

  // The position in the bins.
  std::vector<BinRow> piece_of_bins_;
  std::uint64_t next_bins_ = 0;
  std::size_t next_bin_ = 0;
};

}  // namespace telens::record
