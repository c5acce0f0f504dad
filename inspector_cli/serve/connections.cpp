#include "inspector_cli/serve/connections.h"

#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

namespace telens::cli {
namespace {

// A page uses one connection at a time. Browsers open a few more and may send nothing on them.
constexpr std::size_t kThreads = 16;
constexpr std::size_t kMostWaiting = 64;

void close_socket(int socket) {
  ::shutdown(socket, SHUT_RDWR);
  ::close(socket);
}

using std::chrono::seconds;

constexpr seconds kIdleLimit{1};  // for a client that neither sends nor receives
constexpr seconds kRequestLimit{2};
constexpr seconds kResponseLimit{60};  // a page of 3 MB over a tunnel of 0.5 Mbit/s

}  // namespace

Connections::Connections(Serve serve) : serve_(std::move(serve)) {
  for (std::size_t i = 0; i < kThreads; ++i) threads_.emplace_back([this] { work(); });
}

Connections::~Connections() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
    for (const int socket : served_) ::shutdown(socket, SHUT_RDWR);
    for (const int socket : waiting_) close_socket(socket);
  }
  changed_.notify_all();
  for (std::thread& thread : threads_) thread.join();
}

void Connections::add(int socket) {
  const std::lock_guard lock(mutex_);
  if (stopping_ || waiting_.size() == kMostWaiting) return close_socket(socket);
  waiting_.push_back(socket);
  changed_.notify_one();
}

void Connections::work() {
  std::unique_lock lock(mutex_);
  while (true) {
    changed_.wait(lock, [this] { return stopping_ || !waiting_.empty(); });
    if (stopping_) return;
    const int socket = waiting_.front();
    waiting_.pop_front();
    served_.insert(socket);
    lock.unlock();
    serve_(socket);
    lock.lock();
    served_.erase(socket);
    close_socket(socket);
  }
}

// Waits until the socket is ready for `event` or broken. Returns false at the deadline.
bool BoundedStream::wait(short event, Clock::time_point deadline) const {
  const Clock::time_point end = std::min(deadline, Clock::now() + kIdleLimit);
  pollfd asked{.fd = socket_, .events = event, .revents = 0};
  while (true) {
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(end - Clock::now());
    if (left.count() <= 0) return false;
    const int ready = ::poll(&asked, 1, static_cast<int>(left.count()));
    if (ready >= 0 || errno != EINTR) return ready > 0;
  }
}

bool BoundedStream::is_writable() const { return wait(POLLOUT, begin_ + kResponseLimit); }

ssize_t BoundedStream::read(char* to, std::size_t size) {
  if (unread_begin_ == unread_end_) {
    const std::size_t room = request_.size() - unread_end_;
    if (room == 0 || !wait(POLLIN, begin_ + kRequestLimit)) return -1;
    const ssize_t came = ::recv(socket_, request_.data() + unread_end_, room, MSG_DONTWAIT);
    if (came <= 0) return came;
    unread_end_ += static_cast<std::size_t>(came);
  }
  const std::size_t taken = std::min(size, unread_end_ - unread_begin_);
  std::memcpy(to, request_.data() + unread_begin_, taken);
  unread_begin_ += taken;
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
