#include "features/record/rank_claim.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <system_error>
#include <utility>

#include "features/record/run_paths.h"

namespace telens::record {

namespace {

// Whether the path still names the open file: who had the lock before may have removed it.
bool is_at(int descriptor, const std::string& path) {
  struct stat opened {};
  struct stat named {};
  return ::fstat(descriptor, &opened) == 0 && ::lstat(path.c_str(), &named) == 0 &&
         opened.st_ino == named.st_ino && opened.st_dev == named.st_dev;
}

}  // namespace

RankClaim::RankClaim(std::string path, int descriptor, bool is_exclusive)
    : path_(std::move(path)),
      descriptor_(descriptor),
      is_exclusive_(is_exclusive),
      process_(::getpid()) {}

std::shared_ptr<const RankClaim> RankClaim::take(const std::string& folder, int rank) {
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  const std::string path = fmt::format("{}/.rank{:05}.lock", folder, rank);
  const auto claim = [&](int descriptor, bool is_exclusive) {
    return std::shared_ptr<const RankClaim>(new RankClaim(path, descriptor, is_exclusive));
  };
  constexpr int kMode = 0644;
  for (;;) {
    const int descriptor =
        ::open(path.c_str(), O_RDWR | O_CREAT | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC, kMode);
    // The caller will find out what is wrong with the folder.
    if (descriptor < 0) return claim(-1, false);
    // A record lock, not one of the open file: a forked child that outlives its parent has none.
    struct flock lock {};
    lock.l_type = F_WRLCK;
    lock.l_whence = SEEK_SET;
    if (::fcntl(descriptor, F_SETLK, &lock) == 0) {
      if (is_at(descriptor, path)) return claim(descriptor, true);
      ::close(descriptor);
      continue;
    }
    if (errno != EAGAIN && errno != EACCES) return claim(descriptor, false);
    ::close(descriptor);
    return nullptr;
  }
}

RankClaim::~RankClaim() {
  if (descriptor_ < 0) return;
  // The lock is another process' in a forked child.
  if (is_exclusive_ && process_ == ::getpid() && is_at(descriptor_, path_)) ::unlink(path_.c_str());
  ::close(descriptor_);
}

ClaimedRun claim_run(const std::string& log_dir, const std::string& run_id, int rank) {
  for (int number = 1;; ++number) {
    std::string id = number == 1 ? run_id : fmt::format("{}-{}", run_id, number);
    if (auto claim = RankClaim::take(run_folder(log_dir, id), rank)) {
      return {std::move(id), std::move(claim)};
    }
  }
}

}  // namespace telens::record
