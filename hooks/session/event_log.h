// Messages to the user: lines of the text log, and the serious ones events of the run file too.
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

// Any thread, but for open().
class EventLog {
 public:
  // `names` lives longer. `iteration`: the running one, that an event belongs to.
  EventLog(record::NameTable& names, std::function<std::int64_t()> iteration)
      : names_(names), iteration_(std::move(iteration)) {}

  // Begins the files, with what came before; until then nothing on disk is touched.
  void open(Sink& run_file, const std::string& log_dir, int rank);

  // Once per text, layer and `once_per`; returns whether it was written now. From WARNING on it is
  // an event "warning" too.
  bool message(std::string_view text, std::string_view layer_name, LogLevel level,
               std::string_view once_per = {});

  // A message that every rank writes alike: on stderr of the rank that leads alone, in the files
  // of all.
  void message_of_run(std::string_view text, LogLevel level);
  void let_lead(bool leads) { leads_ = leads; }

  // In the text log alone.
  bool log(std::string_view text, std::string_view layer_name, LogLevel level,
           std::string_view once_per = {}) {
    return messages_.write(text, layer_name, level, once_per);
  }

  // The same, not on stderr either.
  void log_in_file(std::string_view text, LogLevel level) {
    messages_.write(text, {}, level, {}, /*on_stderr=*/false);
  }

  // An event of this kind, and a message; each time in another iteration anew.
  void announce(std::string_view kind, const std::string& text, std::string_view layer_name,
                LogLevel level = LogLevel::warning);

  // An event of this iteration and layer, of a kind that has no more of them than there are layers,
  // and no message.
  void mark(std::int64_t iteration, std::string_view kind, std::string_view text,
            std::string_view layer_name);

  void flush() { messages_.flush(); }

 private:
  // The most events of one kind: the run file keeps every text in memory and on disk, so it is
  // given as many as a person might still read.
  static constexpr int kMostEvents = 1000;

  bool write_message(std::string_view text, std::string_view layer_name, LogLevel level,
                     std::string_view once_per, bool on_stderr);
  void count_event(std::string_view kind, std::string_view text, std::string_view layer_name);
  void add_event(std::int64_t iteration, std::string_view kind, std::string_view text,
                 std::string_view layer_name);  // under mutex_

  record::NameTable& names_;
  std::function<std::int64_t()> iteration_;
  MessageLog messages_;
  bool leads_ = true;

  std::mutex mutex_;  // over what follows
  Sink* run_file_ = nullptr;
  std::map<std::string, int> numbers_;  // how many events there are, by kind
  std::vector<record::Event> waiting_;  // until open()
};

}  // namespace telens::debug
