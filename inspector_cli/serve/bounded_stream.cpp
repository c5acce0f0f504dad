#include "inspector_cli/serve/bounded_stream.h"

#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

namespace telens::cli {
namespace {

using std::chrono::seconds;

constexpr seconds kPatience{1};  // for a client that sends or takes nothing
constexpr seconds kForRequest{2};
constexpr seconds kForAnswer{60};  // a page of 3 MB over a tunnel of 0.5 Mbit/s

}  // namespace

// True once the socket is ready for `event`, or broken, as the next call tells.
bool BoundedStream::wait(short event, Clock::time_point deadline) const {
  const Clock::time_point end = std::min(deadline, Clock::now() + kPatience);
  pollfd asked{.fd = socket_, .events = event, .revents = 0};
  while (true) {
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(end - Clock::now());
    if (left.count() <= 0) return false;
    const int ready = ::poll(&asked, 1, static_cast<int>(left.count()));
    if (ready >= 0 || errno != EINTR) return ready > 0;
  }
}

bool BoundedStream::is_writable() const { return wait(POLLOUT, begin_ + kForAnswer); }

ssize_t BoundedStream::read(char* to, std::size_t size) {
  if (begin_of_unread_ == end_of_unread_) {
    const std::size_t room = request_.size() - end_of_unread_;
    if (room == 0 || !wait(POLLIN, begin_ + kForRequest)) return -1;
    const ssize_t came = ::recv(socket_, request_.data() + end_of_unread_, room, MSG_DONTWAIT);
    if (came <= 0) return came;
    end_of_unread_ += static_cast<std::size_t>(came);
  }
  const std::size_t taken = std::min(size, end_of_unread_ - begin_of_unread_);
  std::memcpy(to, request_.data() + begin_of_unread_, taken);
  begin_of_unread_ += taken;
  return static_cast<ssize_t>(taken);
}

ssize_t BoundedStream::write(const char* from, std::size_t size) {
  for (std::size_t written = 0; written < size;) {
    if (!is_writable()) return -1;
    const ssize_t more =
        ::send(socket_, from + written, size - written, MSG_DONTWAIT | MSG_NOSIGNAL);
    if (more < 0) {
      if (errno == EAGAIN || errno == EINTR) continue;
      return -1;
    }
    written += static_cast<std::size_t>(more);
  }
  return static_cast<ssize_t>(size);
}

void BoundedStream::get_remote_ip_and_port(std::string& ip, int& port) const {
  ip.clear();
  port = 0;
}

void BoundedStream::get_local_ip_and_port(std::string& ip, int& port) const {
  get_remote_ip_and_port(ip, port);
}

std::time_t BoundedStream::duration() const {
  return std::chrono::duration_cast<seconds>(Clock::now() - begin_).count();
}

}  // namespace telens::cli
