// The logs of a session: messages and one line per statistic as text, and events of the run file.
#pragma once

#include <cstdint>
#include <ctime>
#include <deque>
#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_set>
#include <utility>
#include <vector>

#include "hooks/session_options.h"
#include "hooks/sink.h"

namespace telens::debug {

// ---- text logs, in the line format and files that scripts of nvidia-dlfw-inspect expect

// One log file that lines are appended to. Its name follows the environment:
//   NVDLFW_INSPECT_ENABLE_LOG_OVERWRITE   1 (default): truncate; 0: append
//   NVDLFW_INSPECT_ENABLE_LOG_TIMESTAMP   1: nvdlfw_inspect_<YYYYmmdd_HHMMSS>_globalrank-<r>.log,
//                                         with the stamp of, or else set in,
//                                         NVDLFW_INSPECT_LOG_TIMESTAMP
class LogFile {
 public:
  // Opens <log_dir>/<folder>/nvdlfw_inspect_globalrank-<rank>.log. If it cannot be written, now or
  // later, one line on stderr reports it, and lines are discarded: logging never stops training.
  LogFile(const std::string& log_dir, std::string_view folder, int rank);

  ~LogFile();
  LogFile(const LogFile&) = delete;
  LogFile& operator=(const LogFile&) = delete;

  void write(std::string_view line);
  void flush();

 private:
  static constexpr std::size_t kMostWaiting = 1 << 13;  // bytes

  void give_up(std::string_view reason);
  void write_out();

  std::mutex mutex_;  // guards the members below
  std::string path_;
  int descriptor_ = -1;
  std::string waiting_;  // not written yet
  std::uintmax_t bytes_ = 0;
  std::uintmax_t limit_;  // maximum bytes of a file: writing beyond it ends the process (SIGXFSZ)
};

// "2026-11-21 18:12:21,123", local time, as Python's logging writes it.
class LogClock {
 public:
  // "2026-11-21 23:36:07,042"; valid until the next call.
  std::string_view now();

 private:
  std::time_t second_ = 0;
  std::string text_;  // formatting a date costs more than the rest of a line
};

// Detects repeated texts. It drops the oldest of more than kMost texts, so that its memory is
// bounded if a program's messages never repeat.
class SeenTexts {
 public:
  static constexpr std::size_t kMost = 1 << 16;  // about 10 MB of lines

  // Returns whether the text is new.
  bool add(std::string text);

 private:
  std::unordered_set<std::string> texts_;
  std::deque<const std::string*> oldest_first_;  // in texts_, which does not move its elements
};

// Messages: in the file from NVDLFW_INSPECT_LOG_LEVEL (default INFO) up, on stderr from WARNING up.
class MessageLog {
 public:
  MessageLog();

  // Opens the file and writes the earlier messages; before this call, nothing on disk is touched.
  void open(const std::string& log_dir, int rank);

  // Thread-safe. Escapes invisible characters in names and texts; indents a multi-line text from
  // the second line on. Writes once per text, layer and `once_per` (see SeenTexts); returns true if
  // it was written now.
  bool write(std::string_view message, std::string_view layer_name, LogLevel level,
             std::string_view once_per = {}, bool on_stderr = true);
  void flush();

  // Sets the prefix of the lines that the process's logs write to stderr, "telens: " by default.
  // Any thread.
  static void set_prefix(std::string prefix);

 private:
  std::optional<LogFile> file_;
  LogLevel level_;
  std::mutex mutex_;                  // guards the members below, and the creation of the file
  std::vector<std::string> waiting_;  // lines for the file
  LogClock clock_;
  SeenTexts written_;
};

// Statistics: "<time> - INFO - <name> <tabs> iteration=%06d <tabs> value=%.4f".
class StatisticsLog final : public ScalarLogger {
 public:
  StatisticsLog(const std::string& log_dir, int rank);

  void log_scalar(std::string_view name, double value, std::int64_t iteration) override;
  void flush() override { file_.flush(); }

 private:
  LogFile file_;
  LogClock clock_;
};

// ---- messages to the user: lines of the text log; serious messages are also events of the run
// file

// All calls are thread-safe, except open().
class EventLog {
 public:
  // `names` outlives the log. `iteration` returns the running iteration, which an event belongs to.
  EventLog(record::NameTable& names, std::function<std::int64_t()> iteration)
      : names_(names), iteration_(std::move(iteration)) {}

  // Opens the files and writes the earlier messages; before this call, nothing on disk is touched.
  void open(Sink& run_file, const std::string& log_dir, int rank);

  // Writes once per text, layer and `once_per`; returns true if it was written now. WARNING and
  // above are also an event "warning".
  bool message(std::string_view text, std::string_view layer_name, LogLevel level,
               std::string_view once_per = {});

  // Writes a message that every rank writes identically: to stderr only on the leading rank, to the
  // files on all ranks.
  void message_of_run(std::string_view text, LogLevel level);
  void let_lead(bool leads) { leads_ = leads; }

  // Writes only to the text log.
  bool log(std::string_view text, std::string_view layer_name, LogLevel level,
           std::string_view once_per = {}) {
    return messages_.write(text, layer_name, level, once_per);
  }

  // Like log(), also not to stderr.
  void log_in_file(std::string_view text, LogLevel level) {
    messages_.write(text, {}, level, {}, /*on_stderr=*/false);
  }

  // Writes an event of this kind and a message; the message is written once per text and iteration.
  void announce(std::string_view kind, const std::string& text, std::string_view layer_name,
                LogLevel level = LogLevel::warning);

  // Writes an event for this iteration and layer, without a message. For kinds that have at most as
  // many events as there are layers.
  void mark(std::int64_t iteration, std::string_view kind, std::string_view text,
            std::string_view layer_name);

  void flush() { messages_.flush(); }

 private:
  // Maximum number of events per kind: the run file keeps every text in memory and on disk, so the
  // number is limited to events that a person may still read.
  static constexpr int kMostEvents = 1000;

  bool write_message(std::string_view text, std::string_view layer_name, LogLevel level,
                     std::string_view once_per, bool on_stderr);
  void count_event(std::string_view kind, std::string_view text, std::string_view layer_name);
  void add_event(std::int64_t iteration, std::string_view kind, std::string_view text,
                 std::string_view layer_name);  // requires mutex_

  record::NameTable& names_;
  std::function<std::int64_t()> iteration_;
  MessageLog messages_;
  bool leads_ = true;

  std::mutex mutex_;  // guards the members below
  Sink* run_file_ = nullptr;
  std::map<std::string, int> numbers_;  // number of events, by kind
  std::vector<record::Event> waiting_;  // events before open()
};

}  // namespace telens::debug
