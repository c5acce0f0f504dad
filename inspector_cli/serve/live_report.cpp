#include "inspector_cli/serve/live_report.h"

#include <fmt/format.h>

#include <exception>
#include <nlohmann/json.hpp>
#include <utility>

#include "core/base/printable.h"
#include "inspector_cli/report/report_page.h"

namespace telens::cli {
namespace {

// A browser lets a page that is not looked at ask once a minute.
constexpr std::chrono::minutes kLately{2};

WebAnswer make_answer(int status, std::string_view type, std::string body) {
  return {
      .status = status, .type = type, .body = std::make_shared<const std::string>(std::move(body))};
}

}  // namespace

LiveReport::LiveReport(std::string name, std::string path, std::chrono::milliseconds interval)
    : name_(std::move(name)), run_(std::move(path)), interval_(interval), asked_(Clock::now()) {
  const Clock::time_point begin = Clock::now();
  run_.has_news();
  read();
  cost_ = Clock::now() - begin;
}

void LiveReport::read() {
  std::string trouble;
  const record::RunReader run(run_.path(), [&](const std::string& line) {
    trouble += (trouble.empty() ? "" : "; ") + line;
  });
  auto data = std::make_shared<const std::string>(make_report(run, name_).data);
  if (!trouble.empty()) run_.forget();
  publish(std::move(data), std::move(trouble));
}

void LiveReport::update() {
  if (Clock::now() - asked_.load() > kLately) return;
  const Clock::time_point begin = Clock::now();
  try {
    if (!run_.has_news()) return;
    read();
  } catch (const std::exception& error) {
    // The last report stays: it may be all that is left of the run. What failed may go well at the
    // next look, though no file has changed.
    run_.forget();
    publish(content().data,
            fmt::format("The run cannot be read any more, this is what it was: {}", error.what()));
  }
  cost_ = Clock::now() - begin;
}

void LiveReport::publish(std::shared_ptr<const std::string> data, std::string trouble) {
  const std::lock_guard lock(mutex_);
  if (content_.data != nullptr && *data == *content_.data && trouble == content_.trouble) return;
  content_ = {std::move(data), std::move(trouble), content_.version + 1};
}

LiveReport::Content LiveReport::content() const {
  const std::lock_guard lock(mutex_);
  return content_;
}

// The report's data are an object, in which `live` comes first.
std::string LiveReport::data_text(const Content& content) const {
  const Json live{{"version", content.version},
                  {"trouble", json_text(printable(content.trouble))},
                  {"milliseconds", interval_.count()}};
  return fmt::format("{{\"live\":{},{}", json_for_html(live),
                     std::string_view(*content.data).substr(1));
}

WebAnswer LiveReport::answer(std::string_view path, std::string_view after) {
  const bool is_page = path == "/";
  if (!is_page && path != "/data") return {};
  asked_ = Clock::now();
  const Content now = content();
  if (is_page) {
    WebAnswer page = make_answer(200, "text/html; charset=utf-8", make_live_page(data_text(now)));
    page.policy = live_page_policy();
    return page;
  }
  if (after == std::to_string(now.version)) return make_answer(204, "", "");
  return make_answer(200, "application/json", data_text(now));
}

}  // namespace telens::cli
