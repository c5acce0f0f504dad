#include "inspector_cli/serve/loopback_server.h"

#include <httplib.h>
#include <sys/socket.h>

#include <array>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <functional>
#include <thread>
#include <utility>

#include "core/base/error.h"
#include "inspector_cli/serve/bounded_stream.h"
#include "inspector_cli/serve/connections.h"
#include "inspector_cli/serve/token.h"

namespace telens::cli {
namespace {

constexpr const char* kAddress = "127.0.0.1";
constexpr std::size_t kLongestBody = 1024;

// httplib's own options let two servers of one user share a port.
void allow_port_again(int socket) {
  const int yes = 1;
  ::setsockopt(socket, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof(yes));
}

// The name of this machine to itself. The port may be another one, as of a tunnel.
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

// Frames are also refused by X-Frame-Options, for older browsers.
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

// As it lies in memory: a compressed one would cost more time than it saves on the way.
void send(httplib::Response& response, const WebAnswer& answer) {
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

// A client that leaves must not end the process; httplib sets this when it is constructed, from
// when on a closed stdout would not end it either.
class BrokenPipes {
 public:
  BrokenPipes() { ::sigaction(SIGPIPE, nullptr, &before_); }
  ~BrokenPipes() { ::sigaction(SIGPIPE, &before_, nullptr); }
  BrokenPipes(const BrokenPipes&) = delete;
  BrokenPipes& operator=(const BrokenPipes&) = delete;

 private:
  struct sigaction before_ {};
};

// Runs each task where it is enqueued: to hand a connection on takes no time.
class AtOnce final : public httplib::TaskQueue {
  using Enqueued = decltype(std::declval<httplib::TaskQueue&>().enqueue(nullptr));

 public:
  // void, or in newer versions of httplib true.
  Enqueued enqueue(std::function<void()> task) override {
    task();
    return Enqueued(true);
  }
  void shutdown() override {}
};

// Reads and answers within the bounds of BoundedStream and Connections; httplib's own have none for
// the length of a line or the time of a request.
class BoundedServer final : public httplib::Server {
 public:
  BoundedServer() {
    new_task_queue = [] { return new AtOnce; };
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

}  // namespace

class LoopbackServer::Impl {
 public:
  Impl(int port, std::string token, Handler handler)
      : token_(std::move(token)), handler_(std::move(handler)) {
    const BrokenPipes as_before;
    server_ = std::make_unique<BoundedServer>();
    server_->set_socket_options(allow_port_again);
    server_->set_payload_max_length(kLongestBody);
    server_->set_default_headers(headers_of_all());
    server_->set_pre_routing_handler([this](const auto& request, auto& response) {
      // An answer is always whole. httplib would cut it, under the status that the answer has.
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
    const std::string why = errno != 0 ? std::strerror(errno) : "it cannot be had";
    raise<UsageError>("--port {}: {}; another one, or 0 for one that is free, may be had", port,
                      why);
  }

  void answer(const httplib::Request& request, httplib::Response& response) const {
    if (request.get_header_value_count("Host") > 1) {
      return refuse(response, 400, "the request names several hosts");  // RFC 9112, 3.2
    }
    if (!names_this_machine(request.get_header_value("Host"))) {
      return refuse(response, 403, "this host is not the one that serves");
    }
    if (!same_secret(request.get_param_value("token"), token_)) {
      return refuse(response, 403,
                    "the address that it printed has a token, which is missing here");
    }
    if (request.method != "GET" && request.method != "HEAD") {
      return refuse(response, 405, "pages are read, with GET");
    }
    const WebAnswer found = handler_(request.path, request.get_param_value("after"));
    if (found.body == nullptr) return refuse(response, 404, "there is nothing under this path");
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
