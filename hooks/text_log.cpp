#include "hooks/text_log.h"

#include <fmt/chrono.h>
#include <fmt/compile.h>
#include <fmt/format.h>
#include <sys/resource.h>

#include <array>
#include <cctype>
#include <chrono>
#include <cmath>
#include <cstdlib>
#include <ctime>
#include <filesystem>
#include <iostream>
#include <iterator>
#include <limits>
#include <system_error>
#include <utility>

namespace telens::debug {
namespace {

constexpr const char* kLevelVariable = "NVDLFW_INSPECT_LOG_LEVEL";
constexpr const char* kOverwriteVariable = "NVDLFW_INSPECT_ENABLE_LOG_OVERWRITE";
constexpr const char* kStampVariable = "NVDLFW_INSPECT_ENABLE_LOG_TIMESTAMP";
constexpr const char* kStampValueVariable = "NVDLFW_INSPECT_LOG_TIMESTAMP";

std::tm local_time(std::time_t seconds) {
  std::tm local{};
  localtime_r(&seconds, &local);
  return local;
}

bool flag(const char* variable, bool otherwise) {
  const char* value = std::getenv(variable);
  return value == nullptr ? otherwise : std::atoi(value) != 0;
}

// Shared by all logs, and all ranks that inherit the environment.
std::string time_stamp() {
  if (const char* stamp = std::getenv(kStampValueVariable)) return stamp;
  const std::string stamp = fmt::format("{:%Y%m%d_%H%M%S}", local_time(std::time(nullptr)));
  setenv(kStampValueVariable, stamp.c_str(), 0);
  return stamp;
}

std::string file_name(int rank) {
  const std::string stamp = flag(kStampVariable, false) ? '_' + time_stamp() : std::string();
  return fmt::format("nvdlfw_inspect{}_globalrank-{}.log", stamp, rank);
}

struct LevelName {
  LogLevel level;
  std::string_view name;
};
constexpr std::array kLevelNames{
    LevelName{LogLevel::debug, "DEBUG"}, LevelName{LogLevel::info, "INFO"},
    LevelName{LogLevel::warning, "WARNING"}, LevelName{LogLevel::error, "ERROR"},
    LevelName{LogLevel::critical, "CRITICAL"}};

// A number between two levels, which Python allows, counts as the lower one.
std::string_view name_of(LogLevel level) {
  std::string_view name = kLevelNames.front().name;
  for (const LevelName& each : kLevelNames) {
    if (each.level <= level) name = each.name;
  }
  return name;
}

std::uintmax_t largest_file() {
  rlimit limit{};
  const bool limited = getrlimit(RLIMIT_FSIZE, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY;
  return limited ? limit.rlim_cur : std::numeric_limits<std::uintmax_t>::max();
}

LogLevel level_of_environment() {
  const char* value = std::getenv(kLevelVariable);
  std::string upper = value == nullptr ? "" : value;
  for (char& c : upper) c = static_cast<char>(std::toupper(static_cast<unsigned char>(c)));
  for (const LevelName& each : kLevelNames) {
    if (each.name == upper) return each.level;
  }
  return LogLevel::info;
}

}  // namespace

std::string_view LogClock::now() {
  const auto now = std::chrono::system_clock::now();
  const auto milliseconds =
      std::chrono::duration_cast<std::chrono::milliseconds>(now.time_since_epoch()).count() % 1000;
  const std::time_t second = std::chrono::system_clock::to_time_t(now);
  if (second != second_) {
    second_ = second;
    text_ = fmt::format("{:%Y-%m-%d %H:%M:%S},000", local_time(second));
  }
  fmt::format_to(text_.end() - 3, FMT_COMPILE("{:03}"), milliseconds);
  return text_;
}

LogFile::LogFile(const std::string& log_dir, std::string_view folder, int rank)
    : limit_(largest_file()) {
  const std::filesystem::path path = std::filesystem::path(log_dir) / folder / file_name(rank);
  std::error_code error;
  std::filesystem::create_directories(path.parent_path(), error);
  const auto mode = flag(kOverwriteVariable, true) ? std::ios::trunc : std::ios::app;
  path_ = path.string();
  file_.open(path, std::ios::out | mode);
  if (!file_) give_up("is log_dir a folder that you may write to?");
  const std::uintmax_t size = std::filesystem::file_size(path, error);
  if (!error) bytes_ = size;
}

void LogFile::write(std::string_view line) {
  const std::lock_guard lock(mutex_);
  if (!file_.is_open()) return;
  bytes_ += line.size() + 1;
  if (bytes_ > limit_) return give_up("it reached the limit on file sizes (ulimit -f)");
  file_ << line << '\n';
  check();
}

void LogFile::flush() {
  const std::lock_guard lock(mutex_);
  if (!file_.is_open()) return;
  file_.flush();
  check();
}

void LogFile::check() {
  if (!file_) give_up("is the disk full?");
}

void LogFile::give_up(std::string_view reason) {
  if (file_.is_open()) file_.close();
  std::cerr << fmt::format("telens: cannot write the log {}; training goes on without it: {}\n",
                           path_, reason);
}

bool SeenTexts::add(std::string text) {
  const auto [place, is_new] = texts_.insert(std::move(text));
  if (!is_new) return false;
  oldest_first_.push_back(&*place);
  if (oldest_first_.size() > kMost) {
    texts_.erase(texts_.find(*oldest_first_.front()));
    oldest_first_.pop_front();
  }
  return true;
}

MessageLog::MessageLog() : level_(level_of_environment()) {}

void MessageLog::open(const std::string& log_dir, int rank) {
  const std::lock_guard lock(mutex_);
  file_.emplace(log_dir, "nvdlfw_inspect_logs", rank);
  for (const std::string& line : waiting_) file_->write(line);
  waiting_.clear();
}

void MessageLog::flush() {
  if (file_) file_->flush();
}

bool MessageLog::write(std::string_view message, std::string_view layer_name, LogLevel level,
                       std::string_view once_per) {
  const std::string text =
      layer_name.empty() ? std::string(message) : fmt::format("LAYER={}: {}", layer_name, message);
  const std::lock_guard lock(mutex_);
  if (!written_.add(fmt::format("{}\x1f{}", text, once_per))) return false;
  if (level < level_) return true;
  const std::string line = fmt::format("{} - {} - {}", clock_.now(), name_of(level), text);
  if (file_) {
    file_->write(line);
  } else {
    waiting_.push_back(line);
  }
  if (level >= LogLevel::warning) {
    flush();
    std::cerr << "NVDLFW INSPECT - " + line + '\n';
  }
  return true;
}

StatisticsLog::StatisticsLog(const std::string& log_dir, int rank)
    : file_(log_dir, "nvdlfw_inspect_statistics_logs", rank) {}

void StatisticsLog::log_scalar(std::string_view name, double value, std::int64_t iteration) {
  fmt::memory_buffer line;
  const double printed = std::isnan(value) ? NAN : value;  // Python prints no NaN's sign
  fmt::format_to(std::back_inserter(line),
                 FMT_COMPILE("{} - INFO - {} \t\t\t\t iteration={:06} \t\t\t\t value={:.4f}"),
                 clock_.now(), name, iteration, printed);
  file_.write({line.data(), line.size()});
}

}  // namespace telens::debug
