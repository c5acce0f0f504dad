// Keeps the rows that features and the training program record, and passes them to the run file and
// the loggers in step().
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "hooks/session_options.h"
#include "hooks/sink.h"
#include "record/rows/table.h"

namespace telens::debug {

// ---- rows that wait for step()

// The rows of an iteration for the run file and the loggers.
using RecordedIteration = record::RowLists<SessionRows>;

// Thread-safe.
class PendingRecords {
 public:
  // The table outlives it.
  explicit PendingRecords(SeriesTable& series) : series_(series) {}

  template <typename SessionRow>
  void add(SessionRow row) {
    const std::lock_guard lock(mutex_);
    rows_.of<SessionRow>().push_back(std::move(row));
  }
  void add(const record::SomeRows& rows);

  // Adds a number under its logger name: "<layer>_<tensor>_<statistic>" is that statistic, any
  // other name a scalar.
  void add(std::string_view name, double value, std::int64_t iteration);

  // Returns everything that was added since the last call.
  RecordedIteration take();

 private:
  SeriesTable& series_;
  std::mutex mutex_;
  RecordedIteration rows_;
};

// ---- delivery

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
