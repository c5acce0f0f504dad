#include "features/record/thinning.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <filesystem>

#include "core/base/error.h"
#include "features/record/run_paths.h"
#include "features/record/wall_clock.h"

namespace telens::record {
namespace {

constexpr std::uint64_t kChunksAtOnce = 8;

// Whoever looks for the first NaN finds these.
constexpr std::array<std::string_view, 4> kNonFinite{"nan", "posinf", "neginf", "nonfinite"};

std::string temporary_name(const std::string& folder, int rank) {
  return fmt::format("{}/.rank{:05}.thinned.tmp", folder, rank);
}

RunOptions options_of(const SegmentReader& file) {
  RunOptions options;
  options.run_id = file.about().run_id;
  options.rank = file.about().rank;
  options.world_size = file.about().world_size;
  options.config_text = file.config_text();
  options.environment = file.environment();
  return options;
}

Record record_of(const StoredRecord& row) {
  return {row.iteration, row.layer, row.tensor, row.gemm, row.statistic, row.scope, row.value};
}

}  // namespace

Thinning::Thinning(const std::string& path)
    : path_(path), original_(std::make_unique<SegmentReader>(path)) {
  temporary_ = temporary_name(std::filesystem::path(path).parent_path(), original_->about().rank);
  bins_ = original_->bins();
  for (const std::string& name : original_->names(Dictionary::statistic)) {
    counts_non_finite_.push_back(std::ranges::find(kNonFinite, name) != kNonFinite.end());
  }
}

Thinning::~Thinning() {
  const hdf5::Lock lock;
  copy_.reset();
  bins_.reset();
  original_.reset();
  if (!temporary_.empty()) ::unlink(temporary_.c_str());
}

void Thinning::remove_leftovers(const std::string& folder, int rank) {
  ::unlink(temporary_name(folder, rank).c_str());
}

bool Thinning::go_on() {
  if (!looked_) {
    look();
  } else if (!copy_) {
    begin_writing();
  } else if (next_chunk_ <= original_->records().table().chunks()) {
    copy_records();
  } else {
    finish();
    return false;
  }
  return true;
}

// Which iterations there are.
void Thinning::look() {
  const auto& table = original_->records().table();
  for (std::uint64_t i = 0; i < kChunksAtOnce && next_chunk_ <= table.chunks(); ++i) {
    for (const StoredRecord& row : table.rows_of(next_chunk_++)) {
      if (iterations_.empty() || row.iteration != last_looked_at_)
        iterations_.insert(row.iteration);
      last_looked_at_ = row.iteration;
    }
  }
  if (next_chunk_ <= table.chunks()) return;
  for (const StoredBlock& row : original_->blocks()) iterations_.insert(row.iteration);
  choose();
  next_chunk_ = 0;
  looked_ = true;
}

// Every second one, the first and the last.
void Thinning::choose() {
  bool keep = true;
  for (const std::int64_t iteration : iterations_) {
    if (keep) kept_.insert(kept_.end(), iteration);
    keep = !keep;
  }
  if (!iterations_.empty()) kept_.insert(*iterations_.rbegin());
}

bool Thinning::keeps(const StoredRecord& record, bool iteration_kept) const {
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
  copy_ = std::make_unique<SegmentWriter>(
      options_of(*original_), temporary_,
      SegmentContext{
          .start_time = about.start_time, .continues = about.continues, .thinned = thinned});
  Batch names;
  for (const DictionaryLayout& layout : kDictionaryLayouts) {
    names.names[static_cast<std::size_t>(layout.dictionary)] = original_->names(layout.dictionary);
  }
  copy_->write(names);
}

// Of one record; both come in the order of their writing.
void Thinning::add_bins(Batch& batch, std::uint64_t row, std::int64_t new_row) {
  while (true) {
    if (next_bin_ == piece_of_bins_.size()) {
      if (next_bins_ > bins_->chunks()) return;
      piece_of_bins_ = bins_->rows_of(next_bins_++);
      next_bin_ = 0;
      continue;
    }
    const StoredBin& bin = piece_of_bins_[next_bin_];
    if (bin.record > static_cast<std::int64_t>(row)) return;
    if (bin.record == static_cast<std::int64_t>(row)) {
      batch.bins.push_back({new_row, bin.bin, bin.count});
    }
    ++next_bin_;
  }
}

void Thinning::copy_records() {
  const auto& table = original_->records().table();
  Batch batch;
  std::optional<std::int64_t> iteration;  // of the row before, most often that of the next one
  bool kept = false;
  for (std::uint64_t i = 0; i < kChunksAtOnce && next_chunk_ <= table.chunks(); ++i) {
    std::uint64_t number = std::min(next_chunk_ * table.chunk_rows(), table.packed_rows());
    for (const StoredRecord& row : table.rows_of(next_chunk_++)) {
      if (row.iteration != iteration) kept = keeps(row.iteration);
      iteration = row.iteration;
      if (keeps(row, kept)) {
        add_bins(batch, number, static_cast<std::int64_t>(batch.records.size()));
        batch.records.push_back(record_of(row));
      }
      ++number;
    }
  }
  copy_->write(batch);
}

// Its words are behind those of the run, which keep their ids.
void Thinning::add_event(Batch& batch) const {
  const auto words = static_cast<std::int32_t>(original_->names(Dictionary::word).size());
  const Segment& about = original_->about();
  const std::int64_t seen = about.thinned ? about.thinned->iterations_seen
                                          : static_cast<std::int64_t>(iterations_.size());
  auto& names = batch.names[static_cast<std::size_t>(Dictionary::word)];
  names.emplace_back(kThinnedEvent);
  names.push_back(fmt::format(
      "max_size: of iterations {} to {} in {} the records of {} of {} are left, and all that are "
      "not finite",
      *iterations_.begin(), *iterations_.rbegin(), std::filesystem::path(path_).filename().string(),
      kept_.size(), seen));
  batch.events.push_back({.time = seconds_since_1970(),
                          .iteration = *iterations_.begin(),
                          .kind = words,
                          .text = words + 1,
                          .layer = kNoName,
                          .unused = 0});
}

void Thinning::finish() {
  Batch rest;
  const std::vector<std::string> words = original_->names(Dictionary::word);
  for (const StoredEvent& event : original_->events()) {
    const auto kind = static_cast<std::size_t>(event.kind);
    if (kind >= words.size() || words[kind] != kThinnedEvent) rest.events.push_back(event);
  }
  for (const StoredBlock& block : original_->blocks()) {
    if (keeps(block.iteration)) rest.blocks.push_back(block);
  }
  rest.scalars = original_->scalars();
  rest.ledger = original_->ledger();
  rest.drops = original_->drops();
  if (!iterations_.empty()) add_event(rest);
  copy_->write(rest);
  copy_->finish(original_->about().end.value_or(
      RunEnd{seconds_since_1970(), End::killed, "ended when max_size was reached"}));
  const hdf5::Lock lock;
  copy_.reset();
  bins_.reset();
  original_.reset();
  if (std::rename(temporary_.c_str(), path_.c_str()) != 0) {
    raise<RecordError>("cannot rename {} to {}: {}", temporary_, path_, std::strerror(errno));
  }
  temporary_.clear();
}

}  // namespace telens::record
