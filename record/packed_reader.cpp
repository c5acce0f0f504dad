#include "record/packed_reader.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <cstring>
#include <optional>
#include <utility>
#include <vector>

#include "core/base/error.h"
#include "record/packed_rows.h"
#include "record/zlib_codec.h"

namespace telens::record {

namespace {

constexpr std::uint64_t kRecordsAtOnce = 1 << 20;  // one round of the threads

// A decompressed chunk: plane b holds byte b of every row (HDF5's shuffle filter).
class Planes {
 public:
  Planes(std::span<const std::uint8_t> bytes, std::size_t rows) : bytes_(bytes), rows_(rows) {}

  template <typename T>
  T at(std::size_t row, std::size_t offset) const {
    std::array<std::uint8_t, sizeof(T)> value;
    for (std::size_t b = 0; b < sizeof(T); ++b) value[b] = bytes_[(offset + b) * rows_ + row];
    T result;
    std::memcpy(&result, value.data(), sizeof(T));
    return result;
  }
  Record record(std::size_t row) const {
    Record record;
    for_each_column<Record>([&]<typename Member, typename Stored>(
                                const Column<Record, Member, Stored>& column, std::size_t offset) {
      record.*column.member = static_cast<Member>(at<Stored>(row, offset));
    });
    return record;
  }

 private:
  std::span<const std::uint8_t> bytes_;
  std::size_t rows_;
};

// Clears kept[row] if the column's value is not accepted.
template <typename T, typename Accepts>
void sieve(const Planes& planes, std::size_t offset, std::span<char> kept, Accepts accepts) {
  for (std::size_t row = 0; row < kept.size(); ++row) {
    kept[row] &= static_cast<char>(accepts(planes.at<T>(row, offset)));
  }
}

// Applies sieve() to the columns of names that the filter selects by.
void sieve_names(const Planes& planes, const RecordFilter& filter, std::span<char> kept) {
  for_each_column<Record>([&]<typename Member, typename Stored>(
                              const Column<Record, Member, Stored>& column, std::size_t offset) {
    const RecordFilter::Ids* ids =
        column.dictionary ? filter.find_ids(*column.dictionary) : nullptr;
    if (ids == nullptr || ids->all) return;
    if constexpr (std::is_integral_v<Stored>) {
      sieve<Stored>(planes, offset, kept, [&](Stored id) { return ids->accepts(id); });
    }
  });
}

}  // namespace

// The buffers of a thread.
class ChunkDecoder {
 public:
  explicit ChunkDecoder(std::size_t chunk_rows)
      : chunk_rows_(chunk_rows), bytes_(chunk_rows * kStoredBytes<Record>), kept_(chunk_rows) {}

  // Returns the bytes of the chunk, or nullptr if it cannot be decompressed. Valid until the next
  // call.
  const std::vector<std::uint8_t>* decompress(std::span<const std::uint8_t> chunk) {
    return inflater_.decompress(chunk, bytes_) ? &bytes_ : nullptr;
  }

  std::vector<Record> matching(std::span<const std::uint8_t> decompressed, std::size_t rows,
                               const RecordFilter& filter) {
    const Planes planes(decompressed, chunk_rows_);
    const std::span kept = std::span(kept_).first(rows);
    std::ranges::fill(kept, 1);
    sieve_names(planes, filter, kept);
    if (filter.first_iteration != INT64_MIN || filter.last_iteration != INT64_MAX) {
      const std::size_t offset = stored_offset(&Record::iteration);
      sieve<std::int64_t>(planes, offset, kept, [&](std::int64_t i) {
        return i >= filter.first_iteration && i <= filter.last_iteration;
      });
    }
    std::vector<Record> records;
    for (std::size_t row = 0; row < rows; ++row) {
      if (kept[row] != 0) records.push_back(planes.record(row));
    }
    return records;
  }

 private:
  std::size_t chunk_rows_;
  std::vector<std::uint8_t> bytes_;
  std::vector<char> kept_;
  Inflater inflater_;
};

std::vector<Record> PackedReader::matching(std::uint64_t chunk, const RecordFilter& filter,
                                           ChunkDecoder& decoder) const {
  const std::vector<std::uint8_t>* decompressed = table_.find_decompressed(chunk);
  if (decompressed == nullptr) {
    const auto bytes = table_.compressed(chunk);
    if (!bytes) return {};
    decompressed = decoder.decompress(*bytes);
    if (decompressed == nullptr) table_.damaged(chunk);
  }
  if (decompressed == nullptr) return {};
  return decoder.matching(*decompressed, table_.rows_in(chunk), filter);
}

void PackedReader::read(const RecordFilter& filter,
                        const std::function<void(std::span<const Record>)>& use,
                        const std::function<void(std::uint64_t)>& progress) const {
  const std::uint64_t chunks = table_.chunks();
  const std::uint64_t at_once = std::max<std::uint64_t>(1, kRecordsAtOnce / table_.chunk_rows());
  for (std::uint64_t begin = 0; begin < chunks; begin += at_once) {
    const std::uint64_t count = std::min(at_once, chunks - begin);
    std::vector<std::vector<Record>> found(count);
    std::atomic<std::uint64_t> next = 0;
    run_in_threads(count, [&] {
      ChunkDecoder decoder(table_.chunk_rows());
      for (std::uint64_t i = next++; i < count; i = next++) {
        found[i] = matching(begin + i, filter, decoder);
      }
    });
    for (const auto& records : found) {
      if (!records.empty()) use(records);
    }
    if (progress) progress(std::min((begin + count) * table_.chunk_rows(), table_.packed_rows()));
  }
  std::vector<Record> records = table_.get_rows(chunks);
  std::erase_if(records, [&](const Record& record) { return !filter.accepts(record); });
  if (!records.empty()) use(records);
  if (progress) progress(rows());
}

namespace {

// Finds records by row number. Caches one chunk, since the numbers increase from one histogram to
// the next.
class RecordByRow {
 public:
  explicit RecordByRow(const PackedRows<Record>& records) : records_(records) {}

  // Returns nullopt if the row is not in the table yet, or is damaged.
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

// The maximum number of elements of a tensor in one iteration. Sums over ranks and micro-batches
// then fit 64 bits.
constexpr double kMaxElements = 1e12;

// The consecutive bins of a record, possibly from several chunks.
class HistogramBins {
 public:
  void add(const BinRow& bin) {
    const bool possible = std::in_range<std::int32_t>(bin.bin) && bins_.size() < kMaxBins;
    is_valid_ &= possible;
    if (possible) bins_.push_back({static_cast<std::int32_t>(bin.bin), bin.count});
  }
  void clear(std::int64_t record) {
    record_ = record;
    bins_.clear();
    is_valid_ = true;
  }

  std::int64_t record() const { return record_; }
  const std::vector<HistogramBin>& bins() const { return bins_; }
  bool is_complete_for(const Record& record) const {
    double elements = 0;
    for (const HistogramBin& bin : bins_) elements += static_cast<double>(bin.count);
    return is_valid_ && elements == record.value && elements <= kMaxElements;
  }

 private:
  std::int64_t record_ = -1;
  std::vector<HistogramBin> bins_;
  bool is_valid_ = true;
};

}  // namespace

void read_histograms(const PackedRows<BinRow>& bins, const PackedReader& records,
                     const RecordFilter& filter, const UseStoredHistogram& use) {
  RecordByRow record_by_row(records.table());
  HistogramBins gathered;
  const auto emit_histogram = [&] {
    if (gathered.bins().empty()) return;
    const auto record = record_by_row.find(gathered.record());
    if (record && gathered.is_complete_for(*record) && filter.accepts(*record)) {
      use(*record, gathered.bins());
    }
  };
  for (std::uint64_t chunk = 0; chunk <= bins.chunks(); ++chunk) {
    for (const BinRow& bin : bins.get_rows(chunk)) {
      if (bin.record != gathered.record()) {
        emit_histogram();
        gathered.clear(bin.record);
      }
      gathered.add(bin);
    }
  }
  emit_histogram();
}

}  // namespace telens::record
