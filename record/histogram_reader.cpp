#include "record/histogram_reader.h"

#include <optional>
#include <utility>
#include <vector>

#include "record/packed_rows.h"

namespace telens::record {
namespace {

// Records by their row, which grows from one histogram to the next: one chunk is kept.
class RecordByRow {
 public:
  explicit RecordByRow(const PackedRows<Record>& records) : records_(records) {}

  // nullopt: the row is not in the table, or not yet, or damaged.
  std::optional<Record> find(std::int64_t row) {
    if (row < 0 || static_cast<std::uint64_t>(row) >= records_.rows()) return std::nullopt;
    const bool packed = static_cast<std::uint64_t>(row) < records_.packed_rows();
    const std::uint64_t chunk = packed ? row / records_.chunk_rows() : records_.chunks();
    const std::uint64_t begin = packed ? chunk * records_.chunk_rows() : records_.packed_rows();
    if (chunk != chunk_) {
      rows_.assign(records_.chunk_rows(), std::nullopt);
      records_.get_each(
          chunk, [&](std::uint64_t number, const Record& each) { rows_[number - begin] = each; });
      chunk_ = chunk;
    }
    return rows_[row - begin];
  }

 private:
  const PackedRows<Record>& records_;
  std::uint64_t chunk_ = UINT64_MAX;
  std::vector<std::optional<Record>> rows_;
};

// The most elements of a tensor in one iteration. Sums over ranks and micro-batches stay within 64
// bits.
constexpr double kMostElements = 1e12;

// The bins of one record, which lie one behind the other, maybe in several chunks.
class Gathered {
 public:
  void add(const BinRow& bin) {
    const bool possible = std::in_range<std::int32_t>(bin.bin) && bins_.size() < kMostBins;
    sane_ &= possible;
    if (possible) bins_.push_back({static_cast<std::int32_t>(bin.bin), bin.count});
  }
  void clear(std::int64_t record) {
    record_ = record;
    bins_.clear();
    sane_ = true;
  }

  std::int64_t record() const { return record_; }
  const std::vector<HistogramBin>& bins() const { return bins_; }
  bool has_all_of(const Record& record) const {
    double elements = 0;
    for (const HistogramBin& bin : bins_) elements += static_cast<double>(bin.count);
    return sane_ && elements == record.value && elements <= kMostElements;
  }

 private:
  std::int64_t record_ = -1;
  std::vector<HistogramBin> bins_;
  bool sane_ = true;
};

}  // namespace

void read_histograms(const PackedRows<BinRow>& bins, const PackedReader& records,
                     const RecordFilter& filter, const UseStoredHistogram& use) {
  RecordByRow record_by_row(records.table());
  Gathered gathered;
  const auto hand_over = [&] {
    if (gathered.bins().empty()) return;
    const auto record = record_by_row.find(gathered.record());
    if (record && gathered.has_all_of(*record) && filter.accepts(*record)) {
      use(*record, gathered.bins());
    }
  };
  for (std::uint64_t chunk = 0; chunk <= bins.chunks(); ++chunk) {
    for (const BinRow& bin : bins.get_rows(chunk)) {
      if (bin.record != gathered.record()) {
        hand_over();
        gathered.clear(bin.record);
      }
      gathered.add(bin);
    }
  }
  hand_over();
}

}  // namespace telens::record
