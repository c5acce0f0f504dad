#include "features/record/histogram_reader.h"

#include <optional>
#include <vector>

#include "features/record/packed_rows.h"

namespace telens::record {
namespace {

// Records by their row, which grows from one histogram to the next: one chunk is kept.
class RecordByRow {
 public:
  explicit RecordByRow(const PackedRows<StoredRecord>& records) : records_(records) {}

  // nullopt: the row is not in the table, or not yet.
  std::optional<StoredRecord> find(std::int64_t row) {
    if (row < 0 || static_cast<std::uint64_t>(row) >= records_.rows()) return std::nullopt;
    const bool packed = static_cast<std::uint64_t>(row) < records_.packed_rows();
    const std::uint64_t chunk = packed ? row / records_.chunk_rows() : records_.chunks();
    if (chunk != chunk_) {
      rows_ = records_.rows_of(chunk);
      chunk_ = chunk;
    }
    return rows_[row - (packed ? chunk * records_.chunk_rows() : records_.packed_rows())];
  }

 private:
  const PackedRows<StoredRecord>& records_;
  std::uint64_t chunk_ = UINT64_MAX;
  std::vector<StoredRecord> rows_;
};

// The bins of one record, which lie one behind the other, maybe in several chunks.
struct Gathered {
  std::int64_t record = -1;
  std::vector<HistogramBin> bins;

  double elements() const {
    double sum = 0;
    for (const HistogramBin& bin : bins) sum += static_cast<double>(bin.count);
    return sum;
  }
};

}  // namespace

void read_histograms(hid_t file, const PackedReader& records, const RecordFilter& filter,
                     const UseStoredHistogram& use) {
  const PackedRows<StoredBin> bins(file, "histograms");
  RecordByRow record_by_row(records.table());
  Gathered gathered;
  const auto hand_over = [&] {
    if (gathered.bins.empty()) return;
    const auto record = record_by_row.find(gathered.record);
    const bool complete = record && gathered.elements() == record->value;
    if (complete && filter.accepts(*record)) use(*record, gathered.bins);
    gathered.bins.clear();
  };
  for (std::uint64_t chunk = 0; chunk <= bins.chunks(); ++chunk) {
    for (const StoredBin& bin : bins.rows_of(chunk)) {
      if (bin.record != gathered.record) hand_over();
      gathered.record = bin.record;
      gathered.bins.push_back({static_cast<std::int32_t>(bin.bin), bin.count});
    }
  }
  hand_over();
}

}  // namespace telens::record
