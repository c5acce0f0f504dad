// An HTTP server for one user of this machine.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <string_view>

namespace telens::cli {

struct WebAnswer {
  int status = 200;
  std::string_view type;  // "text/html"
  std::shared_ptr<const std::string> body;
  std::string policy = {};  // Content-Security-Policy; empty: nothing may be loaded
};

// Listens on 127.0.0.1 and nowhere else. Each request needs the token, as ?token=..., and names
// this machine as its host: a page of another site, whose name may lead here, has neither (403).
// Only GET and HEAD (405). Answers are kept by no cache, framed by no page, and name their address
// to none. A connection serves one request, of at most 16 KiB, which has to be there two seconds
// after the server began to read it.
class LoopbackServer {
 public:
  // Answers a path, such as "/data", with the request's parameter `after`; nullptr as a body: there
  // is nothing under this path (404). Called by several threads.
  using Handler = std::function<WebAnswer(std::string_view path, std::string_view after)>;

  // port 0: one that is free. Throws UsageError where the port is taken or not allowed.
  LoopbackServer(int port, std::string token, Handler handler);
  // Cuts off what is being read and answered, within two seconds.
  ~LoopbackServer();
  LoopbackServer(const LoopbackServer&) = delete;
  LoopbackServer& operator=(const LoopbackServer&) = delete;

  int port() const;
  // From here on it answers.
  void start();

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace telens::cli
