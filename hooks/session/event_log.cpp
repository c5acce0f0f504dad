#include "hooks/session/event_log.h"

#include <fmt/format.h>

#include <span>
#include <utility>

namespace telens::debug {

void EventLog::open(Sink& run_file, const std::string& log_dir, int rank) {
  messages_.open(log_dir, rank);
  const std::lock_guard lock(mutex_);
  run_file_ = &run_file;
  if (!waiting_.empty()) run_file_->rows(std::span<const record::Event>(waiting_));
  waiting_.clear();
}

bool EventLog::message(std::string_view text, std::string_view layer_name, LogLevel level,
                       std::string_view once_per) {
  return write_message(text, layer_name, level, once_per, /*on_stderr=*/true);
}

void EventLog::message_of_run(std::string_view text, LogLevel level) {
  write_message(text, {}, level, {}, leads_);
}

bool EventLog::write_message(std::string_view text, std::string_view layer_name, LogLevel level,
                             std::string_view once_per, bool on_stderr) {
  const bool written = messages_.write(text, layer_name, level, once_per, on_stderr);
  if (written && level >= LogLevel::warning) count_event("warning", text, layer_name);
  return written;
}

void EventLog::announce(std::string_view kind, const std::string& text, std::string_view layer_name,
                        LogLevel level) {
  messages_.write(text, {}, level, fmt::format("{} {}", kind, iteration_()));
  count_event(kind, text, layer_name);
}

void EventLog::mark(std::int64_t iteration, std::string_view kind, std::string_view text,
                    std::string_view layer_name) {
  const std::lock_guard lock(mutex_);
  add_event(iteration, kind, text, layer_name);
}

void EventLog::count_event(std::string_view kind, std::string_view text,
                           std::string_view layer_name) {
  const std::lock_guard lock(mutex_);
  const int number = ++numbers_[std::string(kind)];
  if (number > kMostEvents + 1) return;
  if (number > kMostEvents) {
    text = "further events of this kind are in the text log only";
    layer_name = {};
  }
  add_event(iteration_(), kind, text, layer_name);
}

void EventLog::add_event(std::int64_t iteration, std::string_view kind, std::string_view text,
                         std::string_view layer_name) {
  const record::Event event{.iteration = iteration,
                            .kind = names_.id(record::Dictionary::word, kind),
                            .text = names_.id(record::Dictionary::word, text),
                            .layer = names_.id_or_none(record::Dictionary::layer, layer_name)};
  if (run_file_ != nullptr) {
    run_file_->rows(std::span(&event, 1));
  } else {
    waiting_.push_back(event);
  }
}

}  // namespace telens::debug
