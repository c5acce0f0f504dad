#include "record/run_reader.h"

#include <fmt/format.h>
#include <algorithm>
#include <array>
#include <atomic>
#include <cstddef>
#include <deque>
#include <filesystem>
#include <optional>
#include <span>
#include <utility>
#include <variant>
#include <vector>

#include "core/base/error.h"
#include "core/base/text.h"
#include "record/disk_space.h"
#include "record/file_summary.h"
#include "record/hdf5_guard.h"
#include "record/joined_segment.h"
#include "record/packed_reader.h"
#include "record/run_paths.h"
#include "record/segment_reader.h"

namespace telens::record {

namespace {

std::vector<std::vector<Record>> read_kept_records(std::span<JoinedSegment* const> segments,
                                                   const RecordQuery& query) {
  std::vector<std::vector<Record>> records(segments.size());
  std::atomic<std::size_t> next = 0;
  run_in_threads(segments.size(), [&] {
    for (std::size_t i = next++; i < segments.size(); i = next++) {
      JoinedSegment& segment = *segments[i];
      const PackedReader stored(*segment.records, segment.damage);
      stored.read(segment.filter(query), [&](std::span<const Record> some) {
        for (const Record& row : some) records[i].push_back(segment.to_reader_ids(row));
      });
    }
  });
  return records;
}

}  // namespace

namespace {

namespace fs = std::filesystem;

std::vector<std::string> list_paths(const std::string& folder) {
  std::vector<std::string> paths;
  for (const SegmentFile& file : segments_in(folder)) paths.push_back(file.path);
  return paths;
}

}  // namespace

std::vector<std::string> run_files(const std::string& path) {
  std::error_code error;
  const auto status = fs::status(path, error);
  const bool is_absent = status.type() == fs::file_type::not_found;
  if (is_absent) raise<RecordError>("{}: run not found", path);
  if (error) raise<RecordError>("{}: cannot be read: {}", path, error.message());
  if (!fs::is_directory(status)) return {path};
  if (auto files = list_paths(path); !files.empty()) return files;

  const auto folders = run_folders(path);
  if (folders.empty()) raise<RecordError>("{}: no run file (rank*.h5) in it", path);
  if (folders.size() > 1) {
    std::string list;
    for (const std::string& folder : folders) list += (list.empty() ? "" : ", ") + folder;
    raise<RecordError>("{}: holds {} runs; name one of them: {}", path, folders.size(), list);
  }
  return list_paths(folders.front());
}

class RunReader::Impl {
 public:
  Impl(const std::string& path, Warn warn, FindDamage find_damage, Opening opening)
      : warn_(std::move(warn)) {
    const std::vector<std::string> files = run_files(path);
    const SummaryOptions options{.find_damage = find_damage,
                                 .max_kept_rows = kMaxKept,
                                 .max_record_bytes = files.size() < kMany ? 0 : kMaxOfFile};
    SummaryProcesses processes(
        files, options,
        opening == Opening::in_processes ? count_summary_processes(files.size()) : 0);
    for (const std::string& file : files) {
      try {
        auto summary = processes.take();
        add(summary ? std::move(*summary) : summarize(file, options));
      } catch (const RecordError& error) {
        const bool none_is_readable = joined_.empty() && file == files.back();
        if (!warn_ || none_is_readable) throw;
        warn_(describe_skipped_file(error));
      }
    }
    warn_about_other_runs();
    find_superseded();
    for (const auto& segment : joined_) segments_.push_back(segment.about);
    for (JoinedSegment& segment : joined_) tell(segment);
  }

  // Calls use(file) for a segment. If the file becomes unreadable, everything read before has been
  // used.
  template <typename Use>
  void visit(JoinedSegment& segment, Use use) {
    if (segment.unreadable) return;
    try {
      with_file(SegmentReader(segment.about.path, segment.rows), [&](const SegmentReader& file) {
        use(file);
        note_damage(segment, file);
      });
    } catch (const RecordError& error) {
      if (!warn_ || joined_.size() == 1) throw;
      segment.unreadable = true;
      warn_(describe_skipped_file(error));
    }
  }

  // Calls use(records) for a segment.
  template <typename Use>
  void visit_records(JoinedSegment& segment, Use use) {
    if (!segment.records) {
      return visit(segment, [&](const SegmentReader& file) { use(file.records()); });
    }
    use(PackedReader(*segment.records, segment.damage));
    tell(segment);
  }

  void read(const RecordQuery& query, const UseRecords& use, const Progress& progress) {
    std::vector<JoinedSegment*> chosen;
    for (JoinedSegment& segment : joined_) {
      if (!query.rank || *query.rank == segment.about.rank) chosen.push_back(&segment);
    }
    std::uint64_t looked_at = 0;
    for (std::size_t begin = 0; begin < chosen.size();) {
      const std::size_t count = count_kept(std::span(chosen).subspan(begin));
      const auto kept = std::span(chosen).subspan(begin, count);
      const std::vector<std::vector<Record>> records = read_kept_records(kept, query);
      for (std::size_t i = 0; i < count; ++i) {
        if (!records[i].empty()) use(kept[i]->about.rank, records[i]);
        tell(*kept[i]);
        looked_at += kept[i]->about.records;
        if (progress) progress(looked_at);
      }
      begin += count;
      if (begin == chosen.size() || chosen[begin]->records) continue;
      JoinedSegment& segment = *chosen[begin++];
      read_file(segment, query, use, [&](std::uint64_t rows) {
        if (progress) progress(looked_at + rows);
      });
      looked_at += segment.about.records;
    }
  }

  template <typename Row>
  void read_rows(const RecordQuery& query, const std::function<void(const Row&)>& use) {
    constexpr bool kMarksSuperseded = requires(Row row) { row.superseded; };
    for (JoinedSegment& segment : joined_) {
      const Segment& about = segment.about;
      if (query.rank && *query.rank != about.rank) continue;
      const RecordFilter filter =
          kMarksSuperseded ? segment.filter_with_superseded(query) : segment.filter(query);
      const auto join = [&](const Row& row) {
        if (!segment.can_join(row) || !filter.accepts(row)) return;
        Row to_reader_ids = segment.to_reader_ids(row);
        to_reader_ids.rank = about.rank;
        if constexpr (kMarksSuperseded)
          to_reader_ids.superseded = row.iteration >= about.superseded_from;
        use(to_reader_ids);
      };
      if constexpr (kIsKept<Row>) {
        if (segment.kept) {
          std::ranges::for_each(segment.kept->of<Row>(), join);
          continue;
        }
      }
      visit(segment, [&](const SegmentReader& file) { file.read<Row>(join); });
    }
  }

  const JoinedNames& names(Dictionary dictionary) const {
    return names_[static_cast<std::size_t>(dictionary)];
  }

  template <typename Read>
  auto read_first(Read read) {
    decltype(read(std::declval<const SegmentReader&>())) result;
    visit(joined_.front(), [&](const SegmentReader& file) { result = read(file); });
    return result;
  }

  // Counts records that no later segment repeats.
  std::uint64_t record_count() {
    std::uint64_t count = 0;
    for (JoinedSegment& segment : joined_) {
      const Segment& about = segment.about;
      if (about.records == 0 || about.superseded_from > about.last_iteration) {
        count += about.records;
        continue;
      }
      visit_records(segment, [&](const PackedReader& records) {
        records.read(segment.filter({}), [&](auto some) { count += some.size(); });
      });
    }
    return count;
  }

  std::array<JoinedNames, kDictionaries> names_;
  std::deque<JoinedSegment> joined_;
  std::vector<Segment> segments_;

 private:
  // Returns how many files from the first on have their records in memory, up to the number that is
  // decompressed at once.
  static std::size_t count_kept(std::span<JoinedSegment* const> segments) {
    constexpr std::size_t kMaxAtOnce = 16;
    const auto some = segments.first(std::min(segments.size(), kMaxAtOnce));
    const auto is_kept = [](const JoinedSegment* each) { return each->records.has_value(); };
    return static_cast<std::size_t>(std::ranges::find_if_not(some, is_kept) - some.begin());
  }

  void read_file(JoinedSegment& segment, const RecordQuery& query, const UseRecords& use,
                 const Progress& progress) {
    std::vector<Record> records;
    visit(segment, [&](const SegmentReader& file) {
      const auto join = [&](std::span<const Record> stored) {
        records.clear();
        for (const Record& row : stored) records.push_back(segment.to_reader_ids(row));
        use(segment.about.rank, records);
      };
      file.records().read(segment.filter(query), join, progress);
    });
  }

  static std::string describe_skipped_file(const RecordError& error) {
    return fmt::format("{}; the run is read without it", error.what());
  }

  template <typename Use>
  static void with_file(const SegmentReader& file, Use use) {
    try {
      use(file);
    } catch (const RecordError& error) {
      raise<RecordError>("{}: truncated or damaged ({})", file.about().path, error.what());
    }
  }

  // Adds the damage found in a file and reports new damage.
  void note_damage(JoinedSegment& segment, const SegmentReader& file) {
    for (const DamagedRows& each : file.damage().list()) {
      segment.damage.add(each.table, each.first_row, each.rows);
    }
    tell(segment);
  }

  void tell(JoinedSegment& segment) {
    const std::vector<DamagedRows> damage = segment.damage.list();
    std::uint64_t rows = 0;
    for (const DamagedRows& each : damage) rows += each.rows;
    if (rows == std::exchange(segment.reported_damage, rows)) return;
    Segment& about = segments_[segment.index];
    about.records = segment.rows - segment.damage.rows("records");
    segment.about.records = about.records;
    if (warn_) {
      warn_(fmt::format("{}: damaged: {}; the run is read without", about.path, describe(damage)));
    }
  }

  // The reader treats their ranks and iterations as belonging to one run.
  void warn_about_other_runs() const {
    if (!warn_) return;
    const std::string& run_id = joined_.front().about.run_id;
    for (const JoinedSegment& each : joined_) {
      if (each.about.run_id == run_id) continue;
      warn_(
          fmt::format("{}: belongs to run {}, other files to run {}; give each run its own folder",
                      each.about.path, printable(each.about.run_id), printable(run_id)));
    }
  }

  void add(FileSummary file) {
    JoinedSegment& segment = joined_.emplace_back();
    segment.index = joined_.size() - 1;
    segment.about = std::move(file.about);
    segment.rows = file.rows;
    segment.first_loss = file.first_loss;
    keep(std::move(file.kept), segment);
    if (file.records && kept_bytes_ + file.records->bytes() <= kMaxKeptBytes) {
      kept_bytes_ += file.records->bytes();
      segment.records = std::move(file.records);
    }
    for (std::size_t i = 0; i < kDictionaries; ++i) {
      segment.joined_ids[i] = names_[i].add(file.names[i]);
    }
    for (const DamagedRows& each : file.damage) {
      segment.damage.add(each.table, each.first_row, each.rows);
    }
    const hdf5::Lock lock;
    checked_files().add(file.checked, file.checked);
  }

  void keep(std::optional<RowLists<KeptRows>> rows, JoinedSegment& segment) {
    if (!rows) return;
    std::size_t count = 0;
    rows->for_each([&](const auto& list) { count += list.size(); });
    if (kept_rows_ + count > kMaxKept) return;
    kept_rows_ += count;
    segment.kept = std::move(rows);
  }

  // A run resumed from a checkpoint repeats iterations, and the later segment counts. Consecutive
  // files from the same process repeat nothing.
  void find_superseded() {
    std::int64_t from = INT64_MAX;
    std::int64_t from_of_process = INT64_MAX;
    for (std::size_t i = joined_.size(); i-- > 0;) {
      Segment& about = joined_[i].about;
      const bool last_of_rank = i + 1 == joined_.size() || joined_[i + 1].about.rank != about.rank;
      if (last_of_rank) from = from_of_process = INT64_MAX;
      about.superseded_from = from;
      from_of_process = std::min(from_of_process, joined_[i].first_loss);
      if (about.records > 0) from_of_process = std::min(from_of_process, about.first_iteration);
      if (about.continues) continue;
      from = std::min(from, std::exchange(from_of_process, INT64_MAX));
    }
  }

  // The limit for all files together: 48 bytes a row, 50 MB.
  static constexpr std::size_t kMaxKept = 1 << 20;
  // If a run has many files, records are kept in their stored form, because opening each file again
  // would take longer than reading its records.
  static constexpr std::size_t kMany = 32;
  static constexpr std::size_t kMaxOfFile = 256 << 10;
  static constexpr std::size_t kMaxKeptBytes = 64 << 20;

  Warn warn_;
  std::size_t kept_rows_ = 0;
  std::size_t kept_bytes_ = 0;
};

RunReader::RunReader(const std::string& path, Warn warn, FindDamage find_damage, Opening opening)
    : impl_(std::make_unique<Impl>(path, std::move(warn), find_damage, opening)) {}
RunReader::~RunReader() = default;
RunReader::RunReader(RunReader&&) noexcept = default;

const std::vector<Segment>& RunReader::segments() const { return impl_->segments_; }

const std::vector<std::string>& RunReader::names(Dictionary dictionary) const {
  return impl_->names(dictionary).list();
}

std::string RunReader::config_text() const {
  return impl_->read_first([](const SegmentReader& file) { return file.config_text(); });
}

std::vector<std::pair<std::string, std::string>> RunReader::environment() const {
  return impl_->read_first([](const SegmentReader& file) { return file.environment(); });
}

std::uint64_t RunReader::record_count() const { return impl_->record_count(); }

std::vector<Damage> RunReader::damage() const {
  std::vector<Damage> all;
  for (const JoinedSegment& segment : impl_->joined_) {
    for (DamagedRows& rows : segment.damage.list()) {
      all.push_back({segment.about.path, std::move(rows)});
    }
  }
  return all;
}

void RunReader::find_damage() {
  for (JoinedSegment& segment : impl_->joined_) {
    impl_->visit(segment, [](const SegmentReader& file) { file.read_all(); });
  }
}

void RunReader::read(const RecordQuery& query, const UseRecords& use,
                     const Progress& progress) const {
  impl_->read(query, use, progress);
}

void RunReader::read_histograms(const RecordQuery& query, const UseHistogram& use) const {
  for (JoinedSegment& segment : impl_->joined_) {
    const int rank = segment.about.rank;
    if (query.rank && *query.rank != rank) continue;
    const RecordFilter filter = segment.filter(query);
    impl_->visit(segment, [&](const SegmentReader& file) {
      file.read_histograms(filter, [&](const Record& row, std::span<const HistogramBin> bins) {
        use(rank, segment.to_reader_ids(row), bins);
      });
    });
  }
}

void RunReader::read_rows(const RecordQuery& query, const UseRow& use) const {
  std::visit([&](const auto& use_row) { impl_->read_rows(query, use_row); }, use);
}

namespace {

// One file has the start time: a log_dir may hold many runs with many ranks.
RunEntry make_entry(const std::string& folder) {
  RunEntry entry{.folder = folder, .latest = {}, .problem = {}};
  std::string path = folder;
  try {
    const auto files = segments_in(folder);
    if (files.empty()) raise<RecordError>("{}: its files were removed", folder);
    auto last = files.begin();
    while (last + 1 != files.end() && (last + 1)->rank == files.front().rank) ++last;
    path = last->path;
    entry.latest = RunReader(path).segments().front();
    entry.start_time = entry.latest->start_time;
  } catch (const RecordError& error) {
    // Uses the time of the file: a start time of 0 would present an older run as the newest.
    entry.start_time = modification_time(path);
    entry.problem = error.what();
  }
  return entry;
}

}  // namespace

std::string RunEntry::id() const { return std::filesystem::path(folder).filename().string(); }

std::vector<RunEntry> list_runs(const std::string& path) {
  std::vector<RunEntry> runs;
  const auto folders = run_folders(path);
  if (folders.size() < 2) return runs;
  for (const std::string& folder : folders) runs.push_back(make_entry(folder));
  // For equal times, the later name is the newer run: <time>-2 follows <time>.
  std::ranges::stable_sort(runs, [](const RunEntry& a, const RunEntry& b) {
    return a.start_time != b.start_time ? a.start_time > b.start_time : a.folder > b.folder;
  });
  return runs;
}

}  // namespace telens::record
