#include "hooks/session/logs.h"

#include <fmt/chrono.h>
#include <fmt/compile.h>
#include <fmt/format.h>

#include <fcntl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cctype>
#include <cerrno>
#include <chrono>
#include <cmath>
#include <cstdlib>
#include <ctime>
#include <filesystem>
#include <iostream>
#include <iterator>
#include <limits>
#include <span>
#include <system_error>
#include <utility>

#include "core/base/io.h"
#include "core/base/text.h"

namespace telens::debug {

// ---- text logs

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

// The stamp that all logs share, and all ranks that inherit the environment.
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
std::string_view get_name(LogLevel level) {
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

class Prefix {
 public:
  std::string get() {
    const std::lock_guard lock(mutex_);
    return text_;
  }
  void set(std::string text) {
    const std::lock_guard lock(mutex_);
    text_ = std::move(text);
  }

 private:
  std::mutex mutex_;
  std::string text_ = "telens: ";
};

// Never destroyed: sessions may end while the process exits.
Prefix& terminal_prefix() {
  static auto& instance = *new Prefix;
  return instance;
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

namespace {

// Does not follow a symbolic link, and only writes to a regular file: other users may write to the
// folder of a log_dir.
int open_log(const std::string& path, bool truncate) {
  constexpr int kMode = 0666;
  constexpr int kFlags = O_WRONLY | O_CREAT | O_APPEND | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC;
  const int descriptor = ::open(path.c_str(), kFlags, kMode);
  struct stat status {};
  if (descriptor < 0 || ::fstat(descriptor, &status) != 0) return descriptor;
  if (!S_ISREG(status.st_mode) || (truncate && ::ftruncate(descriptor, 0) != 0)) {
    const int error = S_ISREG(status.st_mode) ? errno : EINVAL;
    ::close(descriptor);
    errno = error;
    return -1;
  }
  return descriptor;
}

std::string get_reason(int error) {
  if (error == ELOOP) return "it is a symbolic link, which is not followed; remove it";
  if (error == ENOSPC || error == EDQUOT) return "the disk is full";
  return fmt::format("{}; is log_dir a folder that you may write to?",
                     std::generic_category().message(error));
}

}  // namespace

LogFile::LogFile(const std::string& log_dir, std::string_view folder, int rank)
    : limit_(largest_file()) {
  const std::filesystem::path path = std::filesystem::path(log_dir) / folder / file_name(rank);
  std::error_code no_folder;
  std::filesystem::create_directories(path.parent_path(), no_folder);
  path_ = path.string();
  descriptor_ = open_log(path_, flag(kOverwriteVariable, true));
  if (descriptor_ < 0) give_up(get_reason(no_folder ? no_folder.value() : errno));
  struct stat status {};
  if (descriptor_ >= 0 && ::fstat(descriptor_, &status) == 0)
    bytes_ = static_cast<std::uintmax_t>(status.st_size);
}

LogFile::~LogFile() {
  flush();
  if (descriptor_ >= 0) ::close(descriptor_);
}

void LogFile::write(std::string_view line) {
  const std::lock_guard lock(mutex_);
  if (descriptor_ < 0) return;
  bytes_ += line.size() + 1;
  if (bytes_ > limit_) {
    write_out();
    return give_up("it reached the limit on file sizes (ulimit -f)");
  }
  waiting_ += line;
  waiting_ += '\n';
  if (waiting_.size() >= kMostWaiting) write_out();
}

void LogFile::flush() {
  const std::lock_guard lock(mutex_);
  write_out();
}

void LogFile::write_out() {
  const int error = descriptor_ >= 0 ? write_all(descriptor_, waiting_) : 0;
  if (error != 0) give_up(get_reason(error));
  waiting_.clear();
}

void LogFile::give_up(std::string_view reason) {
  if (descriptor_ >= 0) ::close(std::exchange(descriptor_, -1));
  std::cerr << fmt::format(
      "telens: cannot write the log {}; the training continues without it: {}\n", path_, reason);
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

void MessageLog::set_prefix(std::string prefix) { terminal_prefix().set(std::move(prefix)); }

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
                       std::string_view once_per, bool on_stderr) {
  // Continuation lines are indented, so they cannot be mistaken for lines with another time and
  // level.
  std::string text = printable_lines(message, "    ");
  if (!layer_name.empty()) text = fmt::format("LAYER={}: {}", printable(layer_name), text);
  const std::lock_guard lock(mutex_);
  if (!written_.add(fmt::format("{}\x1f{}", text, once_per))) return false;
  if (level < level_) return true;
  const std::string line = fmt::format("{} - {} - {}", clock_.now(), get_name(level), text);
  if (file_) {
    file_->write(line);
  } else {
    waiting_.push_back(line);
  }
  if (level >= LogLevel::warning) {
    flush();
    if (on_stderr) std::cerr << terminal_prefix().get() + line + '\n';
  }
  return true;
}

StatisticsLog::StatisticsLog(const std::string& log_dir, int rank)
    : file_(log_dir, "nvdlfw_inspect_statistics_logs", rank) {}

void StatisticsLog::log_scalar(std::string_view name, double value, std::int64_t iteration) {
  fmt::memory_buffer line;
  const double printed = std::isnan(value) ? NAN : value;  // Python prints NaN without a sign
  fmt::format_to(std::back_inserter(line),
                 FMT_COMPILE("{} - INFO - {} \t\t\t\t iteration={:06} \t\t\t\t value={:.4f}"),
                 clock_.now(), printable(name), iteration, printed);
  file_.write({line.data(), line.size()});
}

// ---- events

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
