#include "inspector_cli/serve/connections.h"

#include <sys/socket.h>
#include <unistd.h>

#include <cstddef>
#include <utility>

namespace telens::cli {
namespace {

// A page asks over one connection at a time; a browser opens a few more, over which it may send
// nothing.
constexpr std::size_t kThreads = 16;
constexpr std::size_t kMostWaiting = 64;

void close_socket(int socket) {
  ::shutdown(socket, SHUT_RDWR);
  ::close(socket);
}

}  // namespace

Connections::Connections(Serve serve) : serve_(std::move(serve)) {
  for (std::size_t i = 0; i < kThreads; ++i) threads_.emplace_back([this] { work(); });
}

Connections::~Connections() {
  {
    const std::lock_guard lock(mutex_);
    ends_ = true;
    for (const int socket : served_) ::shutdown(socket, SHUT_RDWR);
    for (const int socket : waiting_) close_socket(socket);
  }
  news_.notify_all();
  for (std::thread& thread : threads_) thread.join();
}

void Connections::add(int socket) {
  const std::lock_guard lock(mutex_);
  if (ends_ || waiting_.size() == kMostWaiting) return close_socket(socket);
  waiting_.push_back(socket);
  news_.notify_one();
}

void Connections::work() {
  std::unique_lock lock(mutex_);
  while (true) {
    news_.wait(lock, [this] { return ends_ || !waiting_.empty(); });
    if (ends_) return;
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

}  // namespace telens::cli
