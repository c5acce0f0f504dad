#include "inspector_cli/serve/loopback_server.h"

#include <fmt/format.h>
#include <httplib.h>
#include <poll.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <condition_variable>
#include <csignal>
#include <cstddef>
#include <cstring>
#include <ctime>
#include <deque>
#include <functional>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "core/base/error.h"

namespace telens::cli {
namespace {

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
  [[maybe_unused]] std::time_t duration() const;

 private:
  using Clock = std::chrono::steady_clock;

  bool wait(short event, Clock::time_point deadline) const;

  int socket_;
  Clock::time_point begin_;
  std::array<char, 16 * 1024> request_{};  // the whole request, which limits its size
  std::size_t unread_begin_ = 0;
  std::size_t unread_end_ = 0;
};

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

namespace {

constexpr const char* kAddress = "127.0.0.1";
constexpr std::size_t kLongestBody = 1024;

// Replaces the options of httplib, which let two servers of the same user share a port.
void allow_port_again(int socket) {
  const int yes = 1;
  ::setsockopt(socket, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof(yes));
}

// Returns true if `host` is a local name of this machine, with any port (a tunnel may change it).
bool names_this_machine(std::string_view host) {
  constexpr std::array<std::string_view, 3> kNames{"127.0.0.1", "localhost", "[::1]"};
  for (const std::string_view name : kNames) {
    if (!host.starts_with(name)) continue;
    const std::string_view port = host.substr(name.size());
    const bool is_port = port.size() > 1 && port.front() == ':' &&
                         port.find_first_not_of("0123456789", 1) == std::string_view::npos;
    if (port.empty() || is_port) return true;
  }
  return false;
}

// Older browsers use X-Frame-Options instead of frame-ancestors.
void set_policy(httplib::Response& response, const std::string& policy) {
  response.set_header("Content-Security-Policy", policy + "; frame-ancestors 'none'");
}

void refuse(httplib::Response& response, int status, const std::string& why) {
  response.status = status;
  set_policy(response, "default-src 'none'");
  response.set_content("telens serve: " + why + "\n", "text/plain; charset=utf-8");
}

httplib::Headers headers_of_all() {
  return {{"Cache-Control", "no-store"},
          {"X-Content-Type-Options", "nosniff"},
          {"X-Frame-Options", "DENY"},
          {"Referrer-Policy", "no-referrer"},
          {"Cross-Origin-Resource-Policy", "same-origin"},
          {"Cross-Origin-Opener-Policy", "same-origin"}};
}

// Sends the body uncompressed: over loopback, compression costs more time than it saves.
void send(httplib::Response& response, const WebResponse& answer) {
  response.status = answer.status;
  set_policy(response, answer.policy.empty() ? "default-src 'none'" : answer.policy);
  const std::string type(answer.type);
  if (answer.body->empty()) return;
  response.set_content_provider(
      answer.body->size(), type,
      [body = answer.body](std::size_t offset, std::size_t length, httplib::DataSink& sink) {
        return sink.write(body->data() + offset, length);
      });
}

// Restores the SIGPIPE action that httplib::Server replaces in its constructor. Until the server
// starts, a closed stdout must still end the process.
class KeepSigpipeAction {
 public:
  KeepSigpipeAction() { ::sigaction(SIGPIPE, nullptr, &before_); }
  ~KeepSigpipeAction() { ::sigaction(SIGPIPE, &before_, nullptr); }
  KeepSigpipeAction(const KeepSigpipeAction&) = delete;
  KeepSigpipeAction& operator=(const KeepSigpipeAction&) = delete;

 private:
  struct sigaction before_ {};
};

// Runs each task immediately. A task only passes a connection to Connections.
class ImmediateQueue final : public httplib::TaskQueue {
  using Enqueued = decltype(std::declval<httplib::TaskQueue&>().enqueue(nullptr));

 public:
  // Returns void, or bool in newer versions of httplib.
  Enqueued enqueue(std::function<void()> task) override {
    task();
    return Enqueued(true);
  }
  void shutdown() override {}
};

// Serves requests within the limits of BoundedStream and Connections. httplib does not limit the
// length of a line or the duration of a request.
class BoundedServer final : public httplib::Server {
 public:
  BoundedServer() {
    new_task_queue = [] { return new ImmediateQueue; };
  }

 private:
  bool process_and_close_socket(socket_t socket) override {
    connections_.add(socket);
    return true;
  }

  void serve(int socket) {
    BoundedStream stream(socket);
    bool closed = false;
    process_request(stream, true, closed, nullptr);
  }

  Connections connections_{[this](int socket) { serve(socket); }};
};

// Compares in constant time. Only the length of the secret, which is public, affects the duration.
bool same_secret(std::string_view given, std::string_view secret) {
  if (given.size() != secret.size()) return false;
  unsigned difference = 0;
  for (std::size_t i = 0; i < secret.size(); ++i) {
    difference |= static_cast<unsigned char>(given[i]) ^ static_cast<unsigned char>(secret[i]);
  }
  return *const_cast<const volatile unsigned*>(&difference) == 0;
}

}  // namespace

std::string new_token() {
  std::array<unsigned char, 16> bytes{};
  if (::getrandom(bytes.data(), bytes.size(), 0) != static_cast<ssize_t>(bytes.size())) {
    raise<UsageError>("cannot create an access token: the system provides no random bytes: {}",
                      std::strerror(errno));
  }
  std::string token;
  for (const unsigned char byte : bytes) token += fmt::format("{:02x}", byte);
  return token;
}

class LoopbackServer::Impl {
 public:
  Impl(int port, std::string token, Handler handler)
      : token_(std::move(token)), handler_(std::move(handler)) {
    const KeepSigpipeAction keep;
    server_ = std::make_unique<BoundedServer>();
    server_->set_socket_options(allow_port_again);
    server_->set_payload_max_length(kLongestBody);
    server_->set_default_headers(headers_of_all());
    server_->set_pre_routing_handler([this](const auto& request, auto& response) {
      // Ignores range requests: httplib would truncate the body without changing the status.
      const_cast<httplib::Request&>(request).ranges.clear();
      answer(request, response);
      return httplib::Server::HandlerResponse::Handled;
    });
    bind(port);
  }
  ~Impl() {
    server_->stop();
    if (thread_.joinable()) thread_.join();
  }
  Impl(const Impl&) = delete;
  Impl& operator=(const Impl&) = delete;

  int port() const { return port_; }
  void start() {
    std::signal(SIGPIPE, SIG_IGN);
    thread_ = std::thread([this] { server_->listen_after_bind(); });
    while (!server_->is_running()) std::this_thread::yield();
  }

 private:
  void bind(int port) {
    errno = 0;
    const bool bound = port == 0 ? (port_ = server_->bind_to_any_port(kAddress)) > 0
                                 : server_->bind_to_port(kAddress, port_ = port);
    if (bound) return;
    const std::string why = errno != 0 ? std::strerror(errno) : "not available";
    raise<UsageError>("--port {}: {}; choose another port, or 0 for a free one", port, why);
  }

  void answer(const httplib::Request& request, httplib::Response& response) const {
    if (request.get_header_value_count("Host") > 1) {
      return refuse(response, 400, "the request has several Host headers");  // RFC 9112, 3.2
    }
    if (!names_this_machine(request.get_header_value("Host"))) {
      return refuse(response, 403, "wrong Host header");
    }
    if (!same_secret(request.get_param_value("token"), token_)) {
      return refuse(response, 403, "missing or wrong token; open the URL that the server printed");
    }
    if (request.method != "GET" && request.method != "HEAD") {
      return refuse(response, 405, "only GET and HEAD are supported");
    }
    const WebResponse found = handler_(request.path, request.get_param_value("after"));
    if (found.body == nullptr) return refuse(response, 404, "not found");
    send(response, found);
  }

  std::string token_;
  Handler handler_;
  std::unique_ptr<BoundedServer> server_;
  std::thread thread_;
  int port_ = 0;
};

LoopbackServer::LoopbackServer(int port, std::string token, Handler handler)
    : impl_(std::make_unique<Impl>(port, std::move(token), std::move(handler))) {}
LoopbackServer::~LoopbackServer() = default;
int LoopbackServer::port() const { return impl_->port(); }
void LoopbackServer::start() { impl_->start(); }

}  // namespace telens::cli
