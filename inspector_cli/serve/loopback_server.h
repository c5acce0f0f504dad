// An HTTP server for one user of this machine, protected by a token in the URL.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <string_view>

namespace telens::cli {

// Returns 128 random bits from the system as 32 hexadecimal digits. Throws UsageError if the system
// provides no random bytes.
std::string new_token();

struct WebResponse {
  int status = 200;
  std::string_view type;  // "text/html"
  std::shared_ptr<const std::string> body;
  std::string policy = {};  // Content-Security-Policy; "" forbids loading anything
};

// Listens only on 127.0.0.1. Rejects a request without the token (?token=...) or with the Host of
// another machine (403): pages of other sites, whose names may resolve to this machine, have
// neither. Accepts only GET and HEAD (405). Headers forbid caching, framing and referrers. Each
// connection serves one request, within the limits of BoundedStream.
class LoopbackServer {
 public:
  // Handles a path, such as "/data", with the request's parameter `after`. A nullptr body means
  // 404. Called from several threads.
  using Handler = std::function<WebResponse(std::string_view path, std::string_view after)>;

  // Port 0 picks a free port. Throws UsageError if the port is in use or not permitted.
  LoopbackServer(int port, std::string token, Handler handler);
  // Aborts open requests within two seconds.
  ~LoopbackServer();
  LoopbackServer(const LoopbackServer&) = delete;
  LoopbackServer& operator=(const LoopbackServer&) = delete;

  int port() const;
  // Starts to serve requests.
  void start();

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace telens::cli
