// What people are told: messages in the text log, the serious ones also as events of the run file.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <mutex>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "hooks/debug.h"
#include "hooks/sink.h"
#include "hooks/text_log.h"

namespace telens::debug {

// Any thread, but for open().
class Notices {
 public:
  // iteration: the running one, that an event belongs to.
  explicit Notices(std::function<std::int64_t()> iteration) : iteration_(std::move(iteration)) {}

  // Begins the files, with what came before; until then nothing on disk is touched.
  void open(Sink& run_file, const std::string& log_dir, int rank);

  // Once per text, layer and `once_per`; returns whether it was written now. From WARNING on it is
  // an event "warning" too.
  bool message(std::string_view text, std::string_view layer_name, LogLevel level,
               std::string_view once_per = {});

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
  // Of one kind. The run file keeps every text in memory and on disk, so it is given a number of
  // them that a person might still read.
  static constexpr int kMostEvents = 1000;

  struct Event {
    std::int64_t iteration;
    std::string kind;
    std::string text;
    std::string layer_name;
  };

  void event(std::string_view kind, std::string_view text, std::string_view layer_name);

  std::function<std::int64_t()> iteration_;
  MessageLog messages_;

  std::mutex mutex_;  // over what follows
  Sink* run_file_ = nullptr;
  std::map<std::string, int> numbers_;  // of events, by their kind
  std::vector<Event> waiting_;
};

}  // namespace telens::debug
