// The report of a run that grows, read anew when its files have changed, and what a server gives of
// it.
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

  // `name`: the run, as the commands that are proposed name it; `path`: where it is. A page asks
  // again after `interval`. Throws RecordError where the run cannot be read: after that a page says
  // so.
  LiveReport(std::string name, std::string path, std::chrono::milliseconds interval);

  // Reads the run where there is something new and a page has asked lately. Call it from one
  // thread.
  void update();
  // How long the last reading took.
  Clock::duration cost() const { return cost_; }

  // "/": the page; "/data": its data, or 204 where they are still those that the page has,
  // `after`. Any thread may ask.
  WebAnswer answer(std::string_view path, std::string_view after);

 private:
  struct Content {
    std::shared_ptr<const std::string> data;  // the report's
    std::string trouble;                      // why the data are not of now; empty: they are
    std::uint64_t version = 0;
  };
  void read();
  void publish(std::shared_ptr<const std::string> data, std::string trouble);
  Content content() const;
  std::string data_text(const Content& content) const;

  std::string name_;
  analysis::FollowedRun run_;
  std::chrono::milliseconds interval_;
  Clock::duration cost_{};
  std::atomic<Clock::time_point> asked_;
  mutable std::mutex mutex_;  // over what follows
  Content content_;
};

}  // namespace telens::cli
