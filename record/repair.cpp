#include "record/repair.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>

#include "record/claims.h"
#include "record/disk_space.h"
#include "record/run_paths.h"
#include "record/segment_copy.h"
#include "record/segment_reader.h"

namespace telens::record {

namespace {

namespace fs = std::filesystem;

// The event of a file from which damaged rows were removed.
constexpr std::string_view kRepairedEvent = "repaired";
constexpr std::uint64_t kChunksAtOnce = 64;

[[noreturn]] void fail(const std::string& path, std::string_view what) {
  raise<RecordError>("{}: {}: {}", path, what, std::strerror(errno));
}

// A temporary file that is removed with this object unless it has replaced the original.
class ReplacementFile {
 public:
  explicit ReplacementFile(const std::string& original)
      : original_(original),
        folder_(fs::path(original).parent_path()),
        prefix_(fmt::format(".{}{}", fs::path(original).filename().string(), kRepairInfix)) {
    if (folder_.empty()) folder_ = ".";
    remove_leftovers();
    path_ = (folder_ / fmt::format("{}{}{}", prefix_, ::getpid(), kTemporarySuffix)).string();
  }
  ~ReplacementFile() {
    if (!path_.empty()) ::unlink(path_.c_str());
  }
  ReplacementFile(const ReplacementFile&) = delete;
  ReplacementFile& operator=(const ReplacementFile&) = delete;

  const std::string& path() const { return path_; }

  // Marks the file as being written until it is renamed. The writer's own mark ends when the writer
  // closes the file, and a starting run removes unmarked files that are some minutes old.
  void mark_live() {
    mark_ = DiskSpace(path_);
    mark_.mark_live();
  }

  void replace_original() {
    const int file = ::open(path_.c_str(), O_RDONLY | O_CLOEXEC);
    struct stat before {};
    if (file >= 0 && ::stat(original_.c_str(), &before) == 0) {
      static_cast<void>(::fchmod(file, before.st_mode & 07777));
      static_cast<void>(::fchown(file, before.st_uid, before.st_gid) == 0);
    }
    const bool synced = file >= 0 && ::fsync(file) == 0;
    const int cause = errno;
    if (file >= 0) ::close(file);
    errno = cause;
    if (!synced) fail(original_, "cannot write the repaired file to the disk");
    if (std::rename(path_.c_str(), original_.c_str()) != 0) fail(original_, "cannot replace it");
    path_.clear();
    const int folder = ::open(folder_.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (folder < 0) return;
    static_cast<void>(::fsync(folder));
    ::close(folder);
  }

 private:
  // Removes the files of killed processes.
  void remove_leftovers() const {
    std::error_code ignored;
    for (const auto& entry : fs::directory_iterator(folder_, ignored)) {
      const std::string name = entry.path().filename().string();
      if (!name.starts_with(prefix_) || is_being_written(entry.path().string())) continue;
      ::unlink(entry.path().c_str());
    }
  }

  std::string original_;
  fs::path folder_;
  std::string prefix_;
  std::string path_;
  DiskSpace mark_;
};

// Returns true if HDF5 has not closed the file. Other programs reject such a file even if the run
// ended.
bool is_marked_open(const std::string& path) {
  constexpr off_t kConsistencyFlags = 11;  // in the superblock, versions 2 and 3
  const int file = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (file < 0) return false;
  char flags = 0;
  const bool read = ::pread(file, &flags, 1, kConsistencyFlags) == 1;
  ::close(file);
  return read && flags != 0;
}

void copy_all(const SegmentReader& original, ReplacementFile& file,
              const std::vector<DamagedRows>& lost) {
  const Segment& about = original.about();
  SegmentCopy copy(
      original, file.path(),
      {.start_time = about.start_time, .continues = about.continues, .thinned = about.thinned});
  file.mark_live();
  while (copy.copy_records(kChunksAtOnce, [](const Record&) { return true; })) {
  }
  Batch rest;
  rest.of<Event>() = original.rows<Event>();
  if (!lost.empty()) {
    copy.add_event(rest, kRepairedEvent, fmt::format("damaged and left out: {}", describe(lost)),
                   about.last_iteration);
  }
  copy.finish(
      std::move(rest), [](std::int64_t) { return true; },
      about.end.value_or(
          RunEnd{modification_time(about.path), End::killed, "closed by telens repair"}));
}

}  // namespace

Repair repair(const std::string& path) {
  if (is_being_written(path)) {
    raise<RecordError>("{}: a process is writing it; repair it after the process has ended", path);
  }
  const RewriteClaim claim(path);
  Repair result;
  ReplacementFile file(path);
  {
    const SegmentReader original(path);
    RowCounts expected = original.read_all();
    result.lost = original.damage().list();
    const bool is_whole = original.about().end && result.lost.empty();
    if (is_whole && !is_marked_open(path)) return result;
    copy_all(original, file, result.lost);
    if (!result.lost.empty()) ++expected.of<Event>();  // the event about the repair
    // A file that cannot be read back must not replace one that can be read.
    const SegmentReader copy(file.path());
    const RowCounts kept = copy.read_all();
    result.records = copy.about().records;
    if (!copy.damage().list().empty() || kept != expected) {
      raise<RecordError>(
          "{}: the repaired file does not hold the same rows; the original is unchanged", path);
    }
  }
  file.replace_original();
  result.done = true;
  return result;
}

}  // namespace telens::record
