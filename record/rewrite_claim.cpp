#include "record/rewrite_claim.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>

#include "record/byte_lock.h"
#include "record/file_status.h"

namespace telens::record {

RewriteClaim::RewriteClaim(const std::string& path) {
  for (int opening = 1;; ++opening) {
    // O_NONBLOCK: a pipe of that name must not make the caller wait.
    descriptor_ = ::open(path.c_str(), O_RDWR | O_CLOEXEC | O_NONBLOCK);
    if (descriptor_ < 0) return;
    struct flock lock = make_lock(Mark::rewritten, F_WRLCK);
    const bool locked = ::fcntl(descriptor_, F_OFD_SETLK, &lock) == 0;
    const bool refused = !locked && (errno == EAGAIN || errno == EACCES);
    if (!refused && (opening == kMostOpenings || !has_left(descriptor_, path))) return;
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
