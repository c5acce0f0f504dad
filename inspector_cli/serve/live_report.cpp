#include "inspector_cli/serve/live_report.h"

#include <fmt/format.h>

#include <exception>
#include <nlohmann/json.hpp>
#include <utility>

#include "core/base/text.h"
#include "inspector_cli/report/page.h"
#include "inspector_cli/report/report_page.h"

namespace telens::cli {
namespace {

// Browsers throttle hidden pages to one request per minute.
constexpr std::chrono::minutes kRecently{2};

WebResponse make_response(int status, std::string_view type, std::string body) {
  return {
      .status = status, .type = type, .body = std::make_shared<const std::string>(std::move(body))};
}

}  // namespace

LiveReport::LiveReport(std::string name, std::string path, std::chrono::milliseconds interval)
    : name_(std::move(name)),
      run_(std::move(path)),
      interval_(interval),
      last_request_(Clock::now()) {
  const Clock::time_point begin = Clock::now();
  run_.has_news();
  read();
  cost_ = Clock::now() - begin;
}

void LiveReport::read() {
  std::string error;
  const record::RunReader run(
      run_.path(), [&](const std::string& line) { error += (error.empty() ? "" : "; ") + line; });
  auto data = std::make_shared<const std::string>(make_report(run, name_).data);
  if (!error.empty()) run_.forget();
  publish(std::move(data), std::move(error));
}

void LiveReport::update() {
  if (Clock::now() - last_request_.load() > kRecently) return;
  const Clock::time_point begin = Clock::now();
  try {
    if (!run_.has_news()) return;
    read();
  } catch (const std::exception& failure) {
    // Keep the last report, which may be all that is left of the run. Retry at the next update even
    // if no file changes.
    run_.forget();
    publish(
        content().data,
        fmt::format("The run can no longer be read; this is its last report: {}", failure.what()));
  }
  cost_ = Clock::now() - begin;
}

void LiveReport::publish(std::shared_ptr<const std::string> data, std::string error) {
  const std::lock_guard lock(mutex_);
  if (content_.data != nullptr && *data == *content_.data && error == content_.error) return;
  content_ = {std::move(data), std::move(error), content_.version + 1};
}

LiveReport::Content LiveReport::content() const {
  const std::lock_guard lock(mutex_);
  return content_;
}

// Returns the data of the report, a JSON object, with `live` inserted first.
std::string LiveReport::data_text(const Content& content) const {
  const Json live{{"version", content.version},
                  {"trouble", json_text(printable(content.error))},
                  {"milliseconds", interval_.count()}};
  return fmt::format("{{\"live\":{},{}", json_for_html(live),
                     std::string_view(*content.data).substr(1));
}

WebResponse LiveReport::answer(std::string_view path, std::string_view after) {
  const bool is_page = path == "/";
  if (!is_page && path != "/data") return {};
  last_request_ = Clock::now();
  const Content now = content();
  if (is_page) {
    WebResponse page =
        make_response(200, "text/html; charset=utf-8", make_live_page(data_text(now)));
    page.policy = live_page_policy();
    return page;
  }
  if (after == std::to_string(now.version)) return make_response(204, "", "");
  return make_response(200, "application/json", data_text(now));
}

}  // namespace telens::cli
