#include "record/segment_copy.h"

#include <type_traits>

#include "core/base/error.h"
#include "record/packed_reader.h"
#include "record/run_schema.h"

namespace telens::record {

namespace {

constexpr std::size_t kRowsAtOnce = 1 << 16;

RunOptions get_options(const SegmentReader& file) {
  RunOptions options;
  options.run_id = file.about().run_id;
  options.rank = file.about().rank;
  options.world_size = file.about().world_size;
  options.config_text = file.config_text();
  options.environment = file.environment();
  options.boot_id = file.about().boot_id;
  return options;
}

}  // namespace

SegmentCopy::SegmentCopy(const SegmentReader& original, const std::string& path,
                         const SegmentContext& context)
    : original_(original), bins_(original.bins()) {
  const hdf5::Lock lock;  // for constructors that throw
  copy_ = std::make_unique<SegmentWriter>(get_options(original), path, context);
  Batch names;
  for (const DictionaryLayout& layout : kDictionaryLayouts) {
    names.names[static_cast<std::size_t>(layout.dictionary)] = original.names(layout.dictionary);
  }
  copy_->write(names);
}

SegmentCopy::~SegmentCopy() {
  const hdf5::Lock lock;
  copy_.reset();
  bins_.reset();
}

// Adds the bins of a record. Records and bins are read in the order of writing.
void SegmentCopy::add_bins(Batch& batch, std::uint64_t row, std::int64_t new_row) {
  std::size_t bins_of_record = 0;
  while (true) {
    if (next_bin_ == piece_of_bins_.size()) {
      if (next_bins_ > bins_->chunks()) return;
      piece_of_bins_ = bins_->get_rows(next_bins_++);
      next_bin_ = 0;
      continue;
    }
    const BinRow& bin = piece_of_bins_[next_bin_];
    if (bin.record > static_cast<std::int64_t>(row)) return;
    if (bin.record == static_cast<std::int64_t>(row)) {
      batch.of<BinRow>().push_back({new_row, bin.bin, bin.count});
      if (++bins_of_record > kMaxBins) {
        raise<RecordError>("histograms: more than {} bins of record {}", kMaxBins, row);
      }
    }
    ++next_bin_;
  }
}

bool SegmentCopy::copy_records(std::uint64_t chunks, const Keeps& keeps) {
  const auto& table = original_.records().table();
  Batch batch;
  for (std::uint64_t i = 0; i < chunks && next_chunk_ <= table.chunks(); ++i) {
    table.get_each(next_chunk_++, [&](std::uint64_t number, const Record& row) {
      if (!keeps(row)) return;
      add_bins(batch, number, static_cast<std::int64_t>(batch.of<Record>().size()));
      batch.of<Record>().push_back(row);
      if (batch.of<BinRow>().size() < kRowsAtOnce) return;
      copy_->write(batch);
      batch.clear();
    });
  }
  copy_->write(batch);
  return next_chunk_ <= table.chunks();
}

void SegmentCopy::add_event(Batch& batch, std::string_view kind, std::string_view text,
                            std::int64_t iteration) const {
  const auto words = static_cast<std::int32_t>(original_.names(Dictionary::word).size());
  auto& names = batch.names[static_cast<std::size_t>(Dictionary::word)];
  names.emplace_back(kind);
  names.emplace_back(text);
  batch.of<Event>().push_back(
      {.time = seconds_since_1970(), .iteration = iteration, .kind = words, .text = words + 1});
}

template <typename Row>
void SegmentCopy::copy_rows(const KeepsIteration& keeps) {
  Batch batch;
  auto& rows = batch.of<Row>();
  original_.read<Row>([&](const Row& row) {
    if (!Row::kTable.is_thinned || keeps(row.iteration)) rows.push_back(row);
    if (rows.size() < kRowsAtOnce) return;
    copy_->write(batch);
    batch.clear();
  });
  copy_->write(batch);
}

void SegmentCopy::finish(Batch rest, const KeepsIteration& keeps, const RunEnd& end) {
  rest.of<Drop>() = original_.rows<Drop>();
  copy_->write(rest);
  for_each_type<RecordedRows>([&]<typename Row>() {
    if constexpr (!std::is_same_v<Row, Event>) copy_rows<Row>(keeps);
  });
  copy_->finish(end);
  const hdf5::Lock lock;
  copy_.reset();
  bins_.reset();
}

}  // namespace telens::record
