#include "record/claims.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <pthread.h>
#include <unistd.h>
#include <cerrno>
#include <filesystem>
#include <mutex>
#include <set>
#include <system_error>
#include <utility>

#include "record/disk_space.h"
#include "record/run_paths.h"

namespace telens::record {

namespace {

// The claims of this process. They are needed because record locks within a process do not exclude
// each other, and closing any descriptor of a lock file releases the lock. A forked child does not
// have claims.
class ProcessClaims {
 public:
  static ProcessClaims& get() {
    static auto* const own = new ProcessClaims;  // outlives writers closed at exit
    return *own;
  }

  // Returns false if the claim exists.
  bool add(const std::string& key) {
    const std::scoped_lock lock(mutex_);
    return keys_.insert(key).second;
  }
  void remove(const std::string& key) {
    const std::scoped_lock lock(mutex_);
    keys_.erase(key);
  }

 private:
  ProcessClaims() {
    pthread_atfork([] { get().mutex_.lock(); }, [] { get().mutex_.unlock(); },
                   [] {
                     get().mutex_.unlock();
                     get().keys_.clear();
                   });
  }

  std::mutex mutex_;
  std::set<std::string> keys_;
};

// Returns the same key for all names of a folder.
std::string make_key(const std::string& folder, const std::string& name) {
  std::error_code error;
  const auto canonical = std::filesystem::weakly_canonical(folder, error);
  return ((error ? std::filesystem::path(folder) : canonical) / name).string();
}

}  // namespace

RankClaim::RankClaim(std::string path, std::string key, int descriptor, bool is_exclusive)
    : path_(std::move(path)),
      key_(std::move(key)),
      descriptor_(descriptor),
      is_exclusive_(is_exclusive),
      process_(::getpid()) {}

std::shared_ptr<const RankClaim> RankClaim::take(const std::string& folder, int rank) {
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  const std::string name = fmt::format(".rank{:05}.lock", rank);
  const std::string path = fmt::format("{}/{}", folder, name);
  std::string key = make_key(folder, name);
  if (!ProcessClaims::get().add(key)) return nullptr;
  const auto claim = [&](int descriptor, bool is_exclusive) {
    return std::shared_ptr<const RankClaim>(new RankClaim(path, key, descriptor, is_exclusive));
  };
  constexpr int kMode = 0644;
  for (int opening = 1;; ++opening) {
    const int descriptor =
        ::open(path.c_str(), O_RDWR | O_CREAT | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC, kMode);
    if (descriptor < 0) {  // the caller will report the error of the folder
      ProcessClaims::get().remove(std::exchange(key, ""));
      return claim(-1, false);
    }
    // A record lock, not an open file description lock: a forked child that outlives its parent
    // does not hold it.
    struct flock lock {};
    lock.l_type = F_WRLCK;
    lock.l_whence = SEEK_SET;
    if (::fcntl(descriptor, F_SETLK, &lock) == 0) {
      // The previous holder of the lock may have removed the file.
      if (!has_lost_name(descriptor, path)) return claim(descriptor, true);
      if (opening == kMaxOpenTries) return claim(descriptor, false);
      ::close(descriptor);
      continue;
    }
    if (errno != EAGAIN && errno != EACCES) return claim(descriptor, false);
    ::close(descriptor);
    ProcessClaims::get().remove(key);
    return nullptr;
  }
}

RankClaim::~RankClaim() {
  const bool is_own = process_ == ::getpid();  // in a forked child the claim belongs to the parent
  if (is_own && is_exclusive_ && !has_lost_name(descriptor_, path_)) ::unlink(path_.c_str());
  if (descriptor_ >= 0) ::close(descriptor_);
  if (is_own) ProcessClaims::get().remove(key_);
}

std::string numbered_run_id(const std::string& run_id, int number) {
  return number == 1 ? run_id : fmt::format("{}-{}", run_id, number);
}

ClaimedRun claim_run(const std::string& log_dir, const std::string& run_id, int rank) {
  for (int number = 1;; ++number) {
    std::string id = numbered_run_id(run_id, number);
    if (auto claim = RankClaim::take(run_folder(log_dir, id), rank)) {
      return {std::move(id), std::move(claim)};
    }
  }
}

RewriteClaim::RewriteClaim(const std::string& path) {
  for (int opening = 1;; ++opening) {
    // O_NONBLOCK: opening a pipe must not block the caller.
    descriptor_ = ::open(path.c_str(), O_RDWR | O_CLOEXEC | O_NONBLOCK);
    if (descriptor_ < 0) return;
    struct flock lock = make_lock(Mark::rewritten, F_WRLCK);
    const bool locked = ::fcntl(descriptor_, F_OFD_SETLK, &lock) == 0;
    const bool refused = !locked && (errno == EAGAIN || errno == EACCES);
    if (!refused && (opening == kMaxOpenTries || !has_lost_name(descriptor_, path))) return;
    ::close(descriptor_);
    if (refused) {
      raise<BeingRewritten>("{}: another process is rewriting it; try again later", path);
    }
  }
}

RewriteClaim::~RewriteClaim() {
  if (descriptor_ >= 0) ::close(descriptor_);
}

}  // namespace telens::record
