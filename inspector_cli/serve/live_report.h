// The report of a growing run, which is read again when its files change, as responses of a server.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>

#include "analysis/followed_run.h"
#include "inspector_cli/serve/loopback_server.h"

namespace telens::cli {

class LiveReport {
 public:
  using Clock = std::chrono::steady_clock;

  // `name` is the run's name in suggested commands, `path` its location. Pages poll every
  // `interval`. Throws RecordError if the run cannot be read now; later failures are reported in
  // the page.
  LiveReport(std::string name, std::string path, std::chrono::milliseconds interval);

  // Reads the run if it has changed and a page has polled recently. Call it from one thread.
  void update();
  // Returns the duration of the last read.
  Clock::duration cost() const { return cost_; }

  // Returns the page for "/". For "/data" returns the data, or 204 if `after` is their version.
  // Thread-safe.
  WebResponse answer(std::string_view path, std::string_view after);

 private:
  struct Content {
    std::shared_ptr<const std::string> data;  // of the report
    std::string error;                        // why the data are outdated, or ""
    std::uint64_t version = 0;
  };
  void read();
  void publish(std::shared_ptr<const std::string> data, std::string error);
  Content content() const;
  std::string data_text(const Content& content) const;

  std::string name_;
  analysis::FollowedRun run_;
  std::chrono::milliseconds interval_;
  Clock::duration cost_{};
  std::atomic<Clock::time_point> last_request_;
  mutable std::mutex mutex_;  // guards content_
  Content content_;
};

}  // namespace telens::cli
