// The connections of a server: a thread pool with limits on time and request size.
#pragma once

#include <httplib.h>

#include <array>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <ctime>
#include <deque>
#include <functional>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <vector>

namespace telens::cli {

// Serves connections on a fixed number of threads. Further connections wait in a queue.
class Connections {
 public:
  // Serves a socket. Called from several threads. Must return soon after the socket is shut down.
  using Serve = std::function<void(int socket)>;

  explicit Connections(Serve serve);
  // Shuts down served sockets, closes waiting ones and joins the threads.
  ~Connections();
  Connections(const Connections&) = delete;
  Connections& operator=(const Connections&) = delete;

  // Takes ownership of the socket: serves it when a thread is free, then closes it. Closes it
  // immediately if the queue is full.
  void add(int socket);

 private:
  void work();

  Serve serve_;
  std::mutex mutex_;  // guards the members below
  std::condition_variable changed_;
  std::deque<int> waiting_;
  std::set<int> served_;
  bool stopping_ = false;
  std::vector<std::thread> threads_;
};

// The stream of a connection, with limits: 16 KiB and two seconds for the request, one minute for
// the response, and one second without progress. Reading or writing returns -1 at a limit.
class BoundedStream final : public httplib::Stream {
 public:
  // Starts the time limits. Does not close `socket`.
  explicit BoundedStream(int socket) : socket_(socket), begin_(Clock::now()) {}

  bool is_readable() const override { return unread_begin_ < unread_end_; }
  bool is_writable() const override;
  // Reads up to `size` bytes. Returns 0 if the client has closed its side.
  ssize_t read(char* to, std::size_t size) override;
  // Writes all bytes.
  ssize_t write(const char* from, std::size_t size) override;
  socket_t socket() const override { return socket_; }
  // Both ends are this machine; nothing uses the addresses.
  void get_remote_ip_and_port(std::string& ip, int& port) const override;
  void get_local_ip_and_port(std::string& ip, int& port) const override;
  // Newer versions of httplib require these functions.
  bool wait_readable() const { return is_readable(); }
  bool wait_writable() const { return is_writable(); }
  std::time_t duration() const;

 private:
  using Clock = std::chrono::steady_clock;

  bool wait(short event, Clock::time_point deadline) const;

  int socket_;
  Clock::time_point begin_;
  std::array<char, 16 * 1024> request_{};  // the whole request, which limits its size
  std::size_t unread_begin_ = 0;
  std::size_t unread_end_ = 0;
};

}  // namespace telens::cli
