// Passes recorded data to the run file and the loggers.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "hooks/session/pending_records.h"
#include "hooks/session_options.h"
#include "hooks/sink.h"

namespace telens::debug {

// For one thread.
class SinkFanout {
 public:
  // The loggers are taken from the options: statistics_logger replaces tb_writer, and either
  // replaces the text file. A logger that throws is reported through OnLoggerFailure and not called
  // again.
  using OnLoggerFailure = std::function<void(const std::string& text)>;
  SinkFanout(Sink& run_file, const record::NameTable& names, const InitializeOptions& options,
             OnLoggerFailure on_logger_failure);

  // The run file receives everything, the loggers only scalars and the requested statistics.
  // Interruptions are rethrown.
  void deliver(const RecordedIteration& recorded);

  // Also calls this logger, starting with the next delivery.
  void add_logger(std::shared_ptr<ScalarLogger> logger) { loggers_.push_back(std::move(logger)); }

  // Does not call any logger after this.
  void let_go_of_loggers() { loggers_.clear(); }

 private:
  void log(ScalarLogger& logger, const RecordedIteration& recorded) const;

  Sink& run_file_;
  const record::NameTable& names_;
  std::vector<std::shared_ptr<ScalarLogger>> loggers_;
  OnLoggerFailure on_logger_failure_;
};

}  // namespace telens::debug
