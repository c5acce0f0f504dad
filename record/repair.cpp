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

// The event that a file has from which damaged rows were taken.
constexpr std::string_view kRepairedEvent = "repaired";
constexpr std::uint64_t kChunksAtOnce = 64;

[[noreturn]] void fail(const std::string& path, std::string_view what) {
  raise<RecordError>("{}: {}: {}", path, what, std::strerror(errno));
}

// A file that is gone when its object is, unless it took another one's place.
class NewFile {
 public:
  explicit NewFile(const std::string& original)
      : original_(original),
        folder_(fs::path(original).parent_path()),
        prefix_(fmt::format(".{}{}", fs::path(original).filename().string(), kRepairInfix)) {
    if (folder_.empty()) folder_ = ".";
    remove_leftovers();
    path_ = (folder_ / fmt::format("{}{}{}", prefix_, ::getpid(), kTemporarySuffix)).string();
  }
  ~NewFile() {
    if (!path_.empty()) ::unlink(path_.c_str());
  }
  NewFile(const NewFile&) = delete;
  NewFile& operator=(const NewFile&) = delete;

  const std::string& path() const { return path_; }

  // Until it has its name, also when its writer, which marks it too, has closed it: a run that
  // starts removes files without a mark, once they are some minutes old.
  void mark_live() {
    mark_ = DiskSpace(path_);
    mark_.mark_live();
  }

  void take_place() {
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
  // Those of processes that were killed.
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

// True if HDF5 has not closed the file: other programs then refuse it, also where the run ended.
bool is_marked_open(const std::string& path) {
  constexpr off_t kConsistencyFlags = 11;  // in the superblock, versions 2 and 3
  const int file = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (file < 0) return false;
  char flags = 0;
  const bool read = ::pread(file, &flags, 1, kConsistencyFlags) == 1;
  ::close(file);
  return read && flags != 0;
}

void copy_all(const SegmentReader& original, NewFile& file, const std::vector<DamagedRows>& lost) {
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
          RunEnd{time_of_change(about.path), End::killed, "closed by telens repair"}));
}

}  // namespace

Repair repair(const std::string& path) {
  if (is_being_written(path)) {
    raise<RecordError>("{}: a process is writing it; repair it when that has ended", path);
  }
  const RewriteClaim claim(path);
  Repair result;
  NewFile file(path);
  {
    const SegmentReader original(path);
    RowCounts expected = original.read_all();
    result.lost = original.damage().list();
    const bool is_whole = original.about().end && result.lost.empty();
    if (is_whole && !is_marked_open(path)) return result;
    copy_all(original, file, result.lost);
    if (!result.lost.empty()) ++expected.of<Event>();  // that says so
    // A file that cannot be read again must not take the place of one that could.
    const SegmentReader copy(file.path());
    const RowCounts kept = copy.read_all();
    result.records = copy.about().records;
    if (!copy.damage().list().empty() || kept != expected) {
      raise<RecordError>(
          "{}: not all that it holds could be read back from the repaired file; it "
          "was left as it is",
          path);
    }
  }
  file.take_place();
  result.done = true;
  return result;
}

}  // namespace telens::record
