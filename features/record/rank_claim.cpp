#include "features/record/rank_claim.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <system_error>

#include "features/record/run_paths.h"

namespace telens::record {

std::shared_ptr<const RankClaim> RankClaim::take(const std::string& folder, int rank) {
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  const std::string path = fmt::format("{}/.rank{:05}.lock", folder, rank);
  constexpr int kMode = 0644;
  const int descriptor =
      ::open(path.c_str(), O_RDWR | O_CREAT | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC, kMode);
  // The caller will find out what is wrong with the folder.
  if (descriptor < 0) return std::shared_ptr<const RankClaim>(new RankClaim(-1, false));
  // A record lock, not one of the open file: a forked child that outlives its parent has none.
  struct flock lock {};
  lock.l_type = F_WRLCK;
  lock.l_whence = SEEK_SET;
  const bool locked = ::fcntl(descriptor, F_SETLK, &lock) == 0;
  if (!locked && (errno == EAGAIN || errno == EACCES)) {
    ::close(descriptor);
    return nullptr;
  }
  return std::shared_ptr<const RankClaim>(new RankClaim(descriptor, locked));
}

RankClaim::~RankClaim() {
  if (descriptor_ >= 0) ::close(descriptor_);
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
