// Messages to the user: lines of the text log; serious messages are also events of the run file.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <mutex>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "hooks/session/text_log.h"
#include "hooks/session_options.h"
#include "hooks/sink.h"

namespace telens::debug {

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
