// Hands what was recorded to the run file and the loggers.
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

// One thread.
class SinkFanout {
 public:
  // The loggers are those of the options; statistics_logger takes the place of tb_writer, and that
  // of the text file. One that throws is told in words, and not called again.
  using OnLoggerFailure = std::function<void(const std::string& text)>;
  SinkFanout(Sink& run_file, const record::NameTable& names, const InitializeOptions& options,
             OnLoggerFailure on_logger_failure);

  // The run file gets all of it, the loggers scalars and the statistics that were asked for.
  // Interruptions pass.
  void deliver(const RecordedIteration& recorded);

  // Calls this logger too, from the next delivery on.
  void add_logger(std::shared_ptr<ScalarLogger> logger) { loggers_.push_back(std::move(logger)); }

  // Calls no logger from here on.
  void let_go_of_loggers() { loggers_.clear(); }

 private:
  void log(ScalarLogger& logger, const RecordedIteration& recorded) const;

  Sink& run_file_;
  const record::NameTable& names_;
  std::vector<std::shared_ptr<ScalarLogger>> loggers_;
  OnLoggerFailure on_logger_failure_;
};

}  // namespace telens::debug
