#include "features/record/segment_series.h"

#include <algorithm>
#include <filesystem>
#include <numeric>
#include <system_error>

#include "features/record/disk_space.h"
#include "features/record/run_paths.h"

namespace telens::record {
namespace {

constexpr std::size_t kRecordsAtOnce = 4096;
// A copy that is hardly smaller is not worth another one.
constexpr double kWorthIt = 0.9;
// The oldest file is thinned among those that are about as large as the largest one: so all of a
// run gets coarser, and its older part first.
constexpr double kAboutAsLarge = 0.6;

std::uint64_t size_of(const std::string& path) {
  std::error_code ignored;
  const std::uintmax_t bytes = std::filesystem::file_size(path, ignored);
  return ignored ? 0 : bytes;
}

}  // namespace

SegmentSeries::SegmentSeries(const RunOptions& options, const std::string& folder)
    : options_(options), folder_(folder) {
  Thinning::remove_leftovers(folder, options.rank);
  if (thins()) {
    for (const SegmentFile& file : segments_in(folder)) {
      if (file.rank != options.rank || is_being_written(file.path)) continue;
      ended_.push_back({file.path, size_of(file.path), false});
    }
  }
  make_room();
  const std::uint64_t others = bytes_of_segments(folder, options.rank);
  current_ = std::make_unique<SegmentWriter>(options, folder, others);
  first_path_ = current_->path();
}

std::uint64_t SegmentSeries::ended_bytes() const {
  return std::transform_reduce(ended_.begin(), ended_.end(), std::uint64_t{0}, std::plus<>(),
                               [](const Ended& file) { return file.bytes; });
}

void SegmentSeries::write(const Batch& batch) {
  if (!thins()) return current_->write(batch);
  if (batch.records.size() <= kRecordsAtOnce) return write_piece(batch);
  // In pieces, so that one large batch does not make one large file.
  Batch rest = batch;
  rest.records.clear();
  rest.bins.clear();
  auto bin = batch.bins.begin();
  for (std::size_t begin = 0; begin < batch.records.size(); begin += kRecordsAtOnce) {
    const std::size_t end = std::min(begin + kRecordsAtOnce, batch.records.size());
    Batch piece;
    std::swap(piece.names, rest.names);
    piece.records.assign(batch.records.begin() + static_cast<std::ptrdiff_t>(begin),
                         batch.records.begin() + static_cast<std::ptrdiff_t>(end));
    for (; bin != batch.bins.end() && bin->record < static_cast<std::int64_t>(end); ++bin) {
      piece.bins.push_back(*bin);
      piece.bins.back().record -= static_cast<std::int64_t>(begin);
    }
    write_piece(piece);
  }
  write_piece(rest);
}

void SegmentSeries::write_piece(const Batch& piece) {
  const std::uint64_t after = current_->file_size() + piece.bytes() + kEndReserve;
  if (after > share() && current_->file_size() > share() / 2) begin_next();
  current_->write(piece);
  for (std::size_t i = 0; i < kDictionaries; ++i) {
    names_[i].insert(names_[i].end(), piece.names[i].begin(), piece.names[i].end());
  }
}

// For one more file; false: there is none.
bool SegmentSeries::make_room() {
  while (bytes() > kSharesOfEnded * share()) {
    begin_thinning();
    if (!thinning_) return false;
    const std::string path = thinning_->path();
    while (thinning_ && thinning_->path() == path) go_on();
  }
  return true;
}

void SegmentSeries::begin_next() {
  if (!make_room()) throw MaxSizeReached(options_.max_size);
  Batch names;
  names.names = names_;
  auto next =
      std::make_unique<SegmentWriter>(options_, folder_, bytes() + share(), /*continues=*/true);
  next->write(names);
  current_->finish(End::clean, "goes on in the next file");
  ended_.push_back({current_->path(), current_->file_size(), false});
  current_ = std::move(next);
  begin_thinning();
}

// The next one, where another file would not fit beside those that there are.
void SegmentSeries::begin_thinning() {
  const std::uint64_t another = std::max(share(), current_bytes());
  if (thinning_ || ended_bytes() + another <= kSharesOfEnded * share()) return;
  std::uint64_t largest = 0;
  for (const Ended& file : ended_) {
    if (!file.thin) largest = std::max(largest, file.bytes);
  }
  const std::uint64_t others = ended_bytes() + (current_ ? another : 0);
  for (Ended& file : ended_) {
    const bool fits = others + file.bytes <= options_.max_size;  // its copy
    if (file.thin || !fits) continue;
    if (static_cast<double>(file.bytes) < kAboutAsLarge * static_cast<double>(largest)) continue;
    try {
      thinning_ = std::make_unique<Thinning>(file.path);
      return;
    } catch (const std::exception&) {
      file.thin = true;  // a damaged one
    }
  }
}

void SegmentSeries::go_on() {
  const auto file = std::ranges::find(ended_, thinning_->path(), &Ended::path);
  bool done = true;
  try {
    done = !thinning_->go_on();
  } catch (const std::exception&) {
    // A damaged one, or no room for the copy: it stays as it is.
  }
  if (!done) return;
  const std::uint64_t bytes = size_of(file->path);
  file->thin = static_cast<double>(bytes) > kWorthIt * static_cast<double>(file->bytes);
  file->bytes = bytes;
  thinning_.reset();
  begin_thinning();
}

void SegmentSeries::finish(End end, const std::string& reason) {
  thinning_.reset();
  current_->finish(end, reason);
}

}  // namespace telens::record
