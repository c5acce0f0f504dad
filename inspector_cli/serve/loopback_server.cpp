#include "inspector_cli/serve/loopback_server.h"

#include <fmt/format.h>
#include <httplib.h>
#include <sys/random.h>
#include <sys/socket.h>

#include <array>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <functional>
#include <thread>
#include <utility>

#include "core/base/error.h"
#include "inspector_cli/serve/connections.h"

namespace telens::cli {
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
