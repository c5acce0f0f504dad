// A server reads a connection and writes to it, within bounds of size and time.
#pragma once

#include <httplib.h>

#include <array>
#include <chrono>
#include <cstddef>
#include <ctime>
#include <string>

namespace telens::cli {

// A request of at most 16 KiB, which has to be there in two seconds; its answer has to be taken
// within a minute. In a second in which the client sends or takes nothing, too, reading or writing
// ends with -1.
class BoundedStream final : public httplib::Stream {
 public:
  // From now on; does not close `socket`.
  explicit BoundedStream(int socket) : socket_(socket), begin_(Clock::now()) {}

  bool is_readable() const override { return begin_of_unread_ < end_of_unread_; }
  bool is_writable() const override;
  // Up to `size` bytes, as many as came; 0: the client sends no more.
  ssize_t read(char* to, std::size_t size) override;
  // All of them.
  ssize_t write(const char* from, std::size_t size) override;
  socket_t socket() const override { return socket_; }
  // No one asks for addresses: both ends are this machine.
  void get_remote_ip_and_port(std::string& ip, int& port) const override;
  void get_local_ip_and_port(std::string& ip, int& port) const override;
  // Newer versions of httplib ask for these.
  bool wait_readable() const { return is_readable(); }
  bool wait_writable() const { return is_writable(); }
  std::time_t duration() const;

 private:
  using Clock = std::chrono::steady_clock;

  bool wait(short event, Clock::time_point deadline) const;

  int socket_;
  Clock::time_point begin_;
  // The whole request, so that its size is the bound.
  std::array<char, 16 * 1024> request_{};
  std::size_t begin_of_unread_ = 0;
  std::size_t end_of_unread_ = 0;
};

}  // namespace telens::cli
