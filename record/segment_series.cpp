#include "record/segment_series.h"

#include <fmt/format.h>
#include <unistd.h>
#include <algorithm>
#include <chrono>
#include <filesystem>
#include <numeric>
#include <thread>
#include <utility>

#include "record/disk_space.h"
#include "record/run_paths.h"
#include "record/run_schema.h"
#include "record/segment_reader.h"

namespace telens::record {

namespace {

constexpr std::size_t kRecordsAtOnce = 4096;
// A file is not thinned again if the last thinning saved less than 10 %.
constexpr double kMaxThinnedShare = 0.9;
// The oldest file of at least this fraction of the largest one is thinned: the whole run becomes
// coarser, its older part first.
constexpr double kLargeShare = 0.6;

// The pause before each try of a write: a disk that fails one write may accept the next.
constexpr std::array<std::chrono::milliseconds, 4> kPauses{
    std::chrono::milliseconds(0), std::chrono::milliseconds(100), std::chrono::milliseconds(500),
    std::chrono::milliseconds(2000)};
// Each failed write leaves a file; one process creates at most this many in that way.
constexpr int kMaxFailures = 32;

std::string describe_tries() {
  using Seconds = std::chrono::duration<double>;
  const Seconds total = std::accumulate(kPauses.begin(), kPauses.end(), Seconds(0));
  return fmt::format("{} tries in {:.1f} s", kPauses.size(), total.count());
}

// Calls attempt() until it returns, after a pause before each try and at most `max_tries` times.
// Calls failed(error) for each RecordError; DiskFull passes through, since no pause helps. Returns
// the number of tries, or 0 if all failed.
template <typename Attempt, typename Failed>
std::size_t retry(std::size_t max_tries, Attempt attempt, Failed failed) {
  for (std::size_t tries = 1; tries <= std::min(max_tries, kPauses.size()); ++tries) {
    std::this_thread::sleep_for(kPauses[tries - 1]);
    try {
      attempt();
      return tries;
    } catch (const DiskFull&) {
      throw;
    } catch (const RecordError& error) {
      failed(error);
    }
  }
  return 0;
}

// `files` are pointers to at least one file, oldest first.
template <typename Files>
auto oldest_large_file(const Files& files) {
  const auto bytes = [](const auto* file) { return file->bytes; };
  const auto largest = static_cast<double>(std::ranges::max(files, {}, bytes)->bytes);
  return std::ranges::find_if(files, [&](const auto* file) {
    return static_cast<double>(file->bytes) >= kLargeShare * largest;
  });
}

// Returns the rows that an abandoned file has in addition to the rows `before`.
RowCounts rows_after(const std::string& path, const RowCounts& before) {
  try {
    return SegmentReader(path).count_intact_from(before);
  } catch (const RecordError&) {
    return {};
  }
}

}  // namespace

bool is_writable_folder(const std::string& path) {
  std::error_code unknown;
  return std::filesystem::is_directory(path, unknown) && ::access(path.c_str(), W_OK | X_OK) == 0;
}

SegmentSeries::SegmentSeries(const RunOptions& options, const std::string& folder, Report report)
    : options_(options), folder_(folder), report_(std::move(report)) {
  prepare();
  current_ = create_with_retries([&] {
    const std::uint64_t others = bytes_of_segments(folder, options.rank);
    return std::make_unique<SegmentWriter>(options, folder, others);
  });
  first_path_ = current_->path();
}

// Before the first file: finds the files of earlier starts and makes room for one more.
void SegmentSeries::prepare() {
  const hdf5::Lock lock;  // for constructors that throw
  Thinning::remove_leftovers(folder_, options_.rank);
  if (can_thin()) {
    for (const SegmentFile& file : segments_in(folder_)) {
      if (file.rank != options_.rank || is_being_written(file.path)) continue;
      ended_.push_back({file.path, size_of(file.path), false});
    }
  }
  make_room();
}

// Returns the file that make() creates. Retries if a write fails.
template <typename Make>
std::unique_ptr<SegmentWriter> SegmentSeries::create_with_retries(Make make) {
  std::unique_ptr<SegmentWriter> created;
  std::string first_cause;
  const auto attempt = [&] { created = make(); };
  const auto failed = [&](const RecordError& error) {
    if (!is_writable_folder(folder_)) throw;  // no pause changes that
    if (first_cause.empty()) first_cause = error.what();
  };
  const std::size_t tries = retry(kPauses.size(), attempt, failed);
  if (tries == 0) {
    raise<RecordError>("a run file cannot be created: {} ({})", first_cause, describe_tries());
  }
  if (tries > 1) {
    report_(fmt::format("{}: creating it failed ({}); try {} succeeded, and no row is lost",
                        created->path(), first_cause, tries));
  }
  return created;
}

std::uint64_t SegmentSeries::ended_bytes() const {
  return std::transform_reduce(ended_.begin(), ended_.end(), std::uint64_t{0}, std::plus<>(),
                               [](const Ended& file) { return file.bytes; });
}

void SegmentSeries::write(const Batch& batch) {
  if (!current_->is_in_place()) recover_from_removal();
  if (!can_thin()) return write_to_current(batch);
  const auto& records = batch.of<Record>();
  const auto& bins = batch.of<BinRow>();
  if (records.size() <= kRecordsAtOnce) return write_piece(batch);
  // In pieces, so that a large batch does not create a large file.
  Batch rest = batch;
  rest.of<Record>().clear();
  rest.of<BinRow>().clear();
  auto bin = bins.begin();
  for (std::size_t begin = 0; begin < records.size(); begin += kRecordsAtOnce) {
    const std::size_t end = std::min(begin + kRecordsAtOnce, records.size());
    Batch piece;
    std::swap(piece.names, rest.names);
    piece.of<Record>().assign(records.begin() + static_cast<std::ptrdiff_t>(begin),
                              records.begin() + static_cast<std::ptrdiff_t>(end));
    for (; bin != bins.end() && bin->record < static_cast<std::int64_t>(end); ++bin) {
      piece.of<BinRow>().push_back(*bin);
      piece.of<BinRow>().back().record -= static_cast<std::int64_t>(begin);
    }
    write_piece(piece);
  }
  write_piece(rest);
}

void SegmentSeries::write_piece(const Batch& piece) {
  const std::uint64_t after = current_->file_size() + piece.bytes() + kEndReserve;
  if (after > share() && current_->file_size() > share() / 2) start_next_file();
  write_to_current(piece);
}

void SegmentSeries::write_to_current(const Batch& batch) {
  // Later files start with these names.
  for (std::size_t i = 0; i < kDictionaries; ++i) {
    names_[i].insert(names_[i].end(), batch.names[i].begin(), batch.names[i].end());
  }
  const RowCounts before = current_->written();
  if (before.recorded() == 0 && !batch.of<Record>().empty()) {
    first_iteration_ = batch.of<Record>().front().iteration;
  }
  try {
    current_->write(batch);
  } catch (const DiskFull&) {
    throw;
  } catch (const RecordError& failure) {
    recover_from_failure(batch, before, failure.what());
  }
}

// Rows of the batch that the abandoned file has stay there. The other rows go to a new file.
void SegmentSeries::recover_from_failure(Batch rest, RowCounts before, const std::string& cause) {
  rest.names = {};
  std::string path = current_->path();
  const auto attempt = [&] {
    ++failures_;
    if (!abandoned_rows_) {
      path = current_->path();
      abandon_current(rest, before);
    }
    replace_current(create_next_file(bytes()), *abandoned_rows_);
    before = {};
    current_->write(rest);
  };
  const auto tries_left = static_cast<std::size_t>(std::max(0, kMaxFailures - failures_));
  if (retry(tries_left, attempt, [](const RecordError&) {}) == 0) {
    if (!abandoned_rows_) abandon_current(rest, before);
    raise<RecordError>("{}", cause);
  }
  report_(fmt::format("{}: a write failed ({}); recording continues in {}", path, cause,
                      std::filesystem::path(current_->path()).filename().string()));
}

// Closes the file without finishing it. Removes from the batch the rows that the file gained since
// `before`.
void SegmentSeries::abandon_current(Batch& rest, const RowCounts& before) {
  current_->abandon();
  const std::uint64_t rows = rest.recorded();
  rest.drop_first(rows_after(current_->path(), before));
  abandoned_rows_ = before.recorded() + rows - rest.recorded();
}

// The file lost its name, usually because its folder was removed. Its rows are lost unless the file
// has another name.
void SegmentSeries::recover_from_removal() {
  const std::string path = current_->path();
  const bool removed = current_->is_removed();
  const std::uint64_t rows = current_->written().recorded();
  const std::string event =
      removed ? fmt::format("{} was removed while it was written, and {} rows are lost", path, rows)
              : fmt::format("{} was moved while it was written", path);
  if (removed) rows_lost_ = rows;
  thinning_.reset();
  std::unique_ptr<SegmentWriter> next;
  try {
    std::filesystem::create_directories(folder_);
    next = create_with_retries([&] { return create_next_file(0); });
  } catch (const std::exception& cause) {
    raise<RecordError>("{}, and recording cannot continue: {}", event, cause.what());
  }
  try {
    current_->finish(End::clean, "continues in the next file");
  } catch (const RecordError&) {
    current_->abandon();
  }
  replace_current(std::move(next), rows - std::exchange(rows_lost_, 0));
  ended_.clear();
  if (removed) {
    Batch lost;
    lost.of<Drop>().push_back(
        {seconds_since_1970(), first_iteration_, static_cast<std::int64_t>(rows)});
    current_->write(lost);
  }
  const std::string& now = current_->path();
  report_(fmt::format("{}; recording continues in {}", event,
                      now == path ? "a new file of the same name" : now));
}

// The file starts with the names that rows refer to.
std::unique_ptr<SegmentWriter> SegmentSeries::create_next_file(std::uint64_t others) {
  const hdf5::Lock lock;  // for constructors that throw
  Batch names;
  names.names = names_;
  auto next = std::make_unique<SegmentWriter>(options_, folder_, others, /*continues=*/true);
  try {
    next->write(names);
  } catch (const RecordError&) {
    next->abandon();
    std::filesystem::remove(next->path());
    throw;
  }
  return next;
}

void SegmentSeries::replace_current(std::unique_ptr<SegmentWriter> next, std::uint64_t rows_kept) {
  rows_in_other_files_ += rows_kept;
  ended_.push_back({current_->path(), size_of(current_->path()), false});
  current_ = std::move(next);
  abandoned_rows_.reset();
}

// Makes room for one more file. Returns false if that is impossible.
bool SegmentSeries::make_room() {
  while (bytes() > kSharesOfEnded * share()) {
    start_thinning();
    if (!thinning_) return false;
    const std::string path = thinning_->path();
    while (thinning_ && thinning_->path() == path) run_step();
  }
  return true;
}

void SegmentSeries::start_next_file() {
  if (!make_room()) throw MaxSizeReached(options_.max_size);
  auto next = create_with_retries([&] { return create_next_file(bytes() + share()); });
  current_->finish(End::clean, "continues in the next file");
  const std::uint64_t rows = current_->written().recorded();
  replace_current(std::move(next), rows);
  start_thinning();
}

// Starts to thin a file if another file would not fit.
void SegmentSeries::start_thinning() {
  const std::uint64_t another = std::max(share(), current_bytes());
  if (thinning_ || ended_bytes() + another <= kSharesOfEnded * share()) return;
  const std::uint64_t others = ended_bytes() + (current_ ? another : 0);
  std::vector<Ended*> candidates;
  for (Ended& file : ended_) {
    const bool fits = others + file.bytes <= options_.max_size;  // the copy of the file
    if (!file.thin && fits) candidates.push_back(&file);
  }
  while (!candidates.empty()) {
    const auto chosen = oldest_large_file(candidates);
    try {
      thinning_ = std::make_unique<Thinning>((*chosen)->path);
      return;
    } catch (const BeingRewritten&) {
      // The file is being repaired and may be free the next time. Compare the others without it:
      // otherwise it could be the only large file, and nothing would be thinned any more.
    } catch (const std::exception&) {
      (*chosen)->thin = true;  // it is damaged
    }
    candidates.erase(chosen);
  }
}

void SegmentSeries::run_step() {
  const auto file = std::ranges::find(ended_, thinning_->path(), &Ended::path);
  bool done = true;
  try {
    done = !thinning_->run_step();
  } catch (const std::exception&) {
    // The file is damaged, or its copy does not fit. It stays unchanged.
  }
  if (!done) return;
  const std::uint64_t bytes = size_of(file->path);
  file->thin = static_cast<double>(bytes) > kMaxThinnedShare * static_cast<double>(file->bytes);
  file->bytes = bytes;
  thinning_.reset();
  start_thinning();
}

void SegmentSeries::finish(End end, const std::string& reason) {
  thinning_.reset();
  if (!current_->is_in_place()) recover_from_removal();
  try {
    current_->finish(end, reason);
  } catch (const DiskFull&) {
    throw;
  } catch (const RecordError& failure) {
    recover_from_failure({}, current_->written(), failure.what());
    current_->finish(end, reason);
  }
}

void SegmentSeries::end_as_failed(const std::string& reason) {
  thinning_.reset();
  current_->end({seconds_since_1970(), End::failed, reason});
}

void SegmentSeries::close(std::uint64_t rows_lost, std::int64_t first_iteration_lost) {
  if (rows_lost > 0) current_->lost(rows_lost, first_iteration_lost);
  current_->close();
}

}  // namespace telens::record
