#include "record/thinning.h"

#include <fmt/format.h>
#include <unistd.h>
#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <filesystem>

#include "core/base/error.h"
#include "record/run_paths.h"
#include "record/run_schema.h"

namespace telens::record {

namespace {

constexpr std::uint64_t kChunksAtOnce = 8;

// Statistics that a search for the first NaN needs.
constexpr std::array<std::string_view, 4> kNonFinite{"nan", "posinf", "neginf", "nonfinite"};

std::string temporary_name(const std::string& folder, int rank) {
  return fmt::format("{}/.rank{:05}.thinned.tmp", folder, rank);
}

}  // namespace

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
