#include "record/segment_copy.h"

#include <fmt/format.h>
#include <unistd.h>
#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <type_traits>

#include "core/base/error.h"
#include "record/packed_reader.h"
#include "record/run_paths.h"
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

constexpr std::uint64_t kChunksAtOnce = 8;

// Statistics that a search for the first NaN needs.
constexpr std::array<std::string_view, 4> kNonFinite{"nan", "posinf", "neginf", "nonfinite"};

std::string temporary_name(const std::string& folder, int rank) {
  return fmt::format("{}/.rank{:05}.thinned.tmp", folder, rank);
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

Thinning::Thinning(const std::string& path)
    : path_(path), claim_(path), original_(std::make_unique<SegmentReader>(path)) {
  temporary_ = temporary_name(std::filesystem::path(path).parent_path(), original_->about().rank);
  for (const std::string& name : original_->names(Dictionary::statistic)) {
    counts_non_finite_.push_back(std::ranges::find(kNonFinite, name) != kNonFinite.end());
  }
}

Thinning::~Thinning() {
  const hdf5::Lock lock;
  copy_.reset();
  original_.reset();
  if (!temporary_.empty()) ::unlink(temporary_.c_str());
}

void Thinning::remove_leftovers(const std::string& folder, int rank) {
  ::unlink(temporary_name(folder, rank).c_str());
}

bool Thinning::run_step() {
  if (!iterations_collected_) {
    collect_iterations();
  } else if (!copy_) {
    begin_writing();
  } else if (!copied_) {
    std::optional<std::int64_t> iteration;  // of the previous row, usually also of the next
    bool kept = false;
    copied_ = !copy_->copy_records(kChunksAtOnce, [&](const Record& row) {
      if (row.iteration != iteration) kept = keeps(row.iteration);
      iteration = row.iteration;
      return keeps(row, kept);
    });
  } else {
    finish();
    return false;
  }
  return true;
}

// Collects the iterations of the file.
void Thinning::collect_iterations() {
  const auto& table = original_->records().table();
  for (std::uint64_t i = 0; i < kChunksAtOnce && next_chunk_ <= table.chunks(); ++i) {
    for (const Record& row : table.get_rows(next_chunk_++)) {
      if (iterations_.empty() || row.iteration != last_iteration_)
        iterations_.insert(row.iteration);
      last_iteration_ = row.iteration;
    }
  }
  if (next_chunk_ <= table.chunks()) return;
  for_each_type<RecordedRows>([this]<typename Row>() {
    if (!Row::kTable.is_thinned) return;
    original_->read<Row>([this](const Row& row) { iterations_.insert(row.iteration); });
  });
  choose_iterations();
  iterations_collected_ = true;
}

// Keeps every second iteration, the first and the last.
void Thinning::choose_iterations() {
  bool keep = true;
  for (const std::int64_t iteration : iterations_) {
    if (keep) kept_.insert(kept_.end(), iteration);
    keep = !keep;
  }
  if (!iterations_.empty()) kept_.insert(*iterations_.rbegin());
}

bool Thinning::keeps(const Record& record, bool iteration_kept) const {
  if (iteration_kept || !std::isfinite(record.value)) return true;
  const auto statistic = static_cast<std::size_t>(record.statistic);
  return statistic < counts_non_finite_.size() && counts_non_finite_[statistic] != 0 &&
         record.value > 0;
}

void Thinning::begin_writing() {
  const Segment& about = original_->about();
  Thinned thinned = about.thinned.value_or(
      Thinned{.iterations_seen = static_cast<std::int64_t>(iterations_.size()),
              .records_seen = static_cast<std::int64_t>(about.records)});
  thinned.iterations_left = static_cast<std::int64_t>(kept_.size());
  copy_ = std::make_unique<SegmentCopy>(
      *original_, temporary_,
      SegmentContext{
          .start_time = about.start_time, .continues = about.continues, .thinned = thinned});
}

void Thinning::add_event(Batch& batch) const {
  const Segment& about = original_->about();
  const std::int64_t seen = about.thinned ? about.thinned->iterations_seen
                                          : static_cast<std::int64_t>(iterations_.size());
  const std::string text = fmt::format(
      "max_size: of iterations {} to {} in {} the records of {} of {} are left, and all non-finite "
      "ones",
      *iterations_.begin(), *iterations_.rbegin(), std::filesystem::path(path_).filename().string(),
      kept_.size(), seen);
  copy_->add_event(batch, kThinnedEvent, text, *iterations_.begin());
}

void Thinning::finish() {
  Batch rest;
  const std::vector<std::string> words = original_->names(Dictionary::word);
  for (const Event& event : original_->rows<Event>()) {
    const auto kind = static_cast<std::size_t>(event.kind);
    if (kind >= words.size() || words[kind] != kThinnedEvent) rest.of<Event>().push_back(event);
  }
  if (!iterations_.empty()) add_event(rest);
  copy_->finish(
      std::move(rest), [this](std::int64_t iteration) { return keeps(iteration); },
      original_->about().end.value_or(
          RunEnd{seconds_since_1970(), End::killed, "ended when max_size was reached"}));
  // Everything has been read by now. A copy would not show the missing rows.
  if (const auto damage = original_->damage().list(); !damage.empty()) {
    raise<RecordError>("{}: damaged: {}; it is not thinned", path_, describe(damage));
  }
  const hdf5::Lock lock;
  copy_.reset();
  original_.reset();
  if (std::rename(temporary_.c_str(), path_.c_str()) != 0) {
    raise<RecordError>("cannot rename {} to {}: {}", temporary_, path_, std::strerror(errno));
  }
  temporary_.clear();
}

}  // namespace telens::record
