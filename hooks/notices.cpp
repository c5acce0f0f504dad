#include "hooks/notices.h"

#include <fmt/format.h>

#include <utility>

namespace telens::debug {

void Notices::open(Sink& run_file, const std::string& log_dir, int rank) {
  messages_.open(log_dir, rank);
  const std::lock_guard lock(mutex_);
  run_file_ = &run_file;
  for (const Event& each : std::exchange(waiting_, {})) {
    run_file_->event(each.iteration, each.kind, each.text, each.layer_name);
  }
}

bool Notices::message(std::string_view text, std::string_view layer_name, LogLevel level,
                      std::string_view once_per) {
  const bool written = messages_.write(text, layer_name, level, once_per);
  if (written && level >= LogLevel::warning) event("warning", text, layer_name);
  return written;
}

void Notices::announce(std::string_view kind, const std::string& text, std::string_view layer_name,
                       LogLevel level) {
  messages_.write(text, {}, level, fmt::format("{} {}", kind, iteration_()));
  event(kind, text, layer_name);
}

void Notices::mark(std::int64_t iteration, std::string_view kind, std::string_view text,
                   std::string_view layer_name) {
  const std::lock_guard lock(mutex_);
  if (run_file_ != nullptr) {
    run_file_->event(iteration, kind, text, layer_name);
  } else {
    waiting_.push_back({iteration, std::string(kind), std::string(text), std::string(layer_name)});
  }
}

void Notices::event(std::string_view kind, std::string_view text, std::string_view layer_name) {
  const std::lock_guard lock(mutex_);
  const int number = ++numbers_[std::string(kind)];
  if (number > kMostEvents + 1) return;
  if (number > kMostEvents) {
    text = "further events of this kind are in the text log only";
    layer_name = {};
  }
  if (run_file_ != nullptr) {
    run_file_->event(iteration_(), kind, text, layer_name);
  } else {
    waiting_.push_back(
        {iteration_(), std::string(kind), std::string(text), std::string(layer_name)});
  }
}

}  // namespace telens::debug
