// Hands what was logged to those who keep it: the run file and the loggers.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "hooks/debug.h"
#include "hooks/outbox.h"
#include "hooks/sink.h"

namespace telens::debug {

// One thread.
class Delivery {
 public:
  // The loggers are those of the options; statistics_logger takes the place of tb_writer, and that
  // of the text file. One that throws is told in words, and not called again.
  using OnLoggerFailure = std::function<void(const std::string& text)>;
  Delivery(std::unique_ptr<Sink> run_file, const InitializeOptions& options,
           OnLoggerFailure on_logger_failure);

  Sink& run_file() const { return *run_file_; }

  // Rows that nobody asked for, and histograms, ledger and blocks, go to the run file alone.
  // Interruptions pass.
  void deliver(const Logged& logged);

  // Ends the run file, and lets go of the loggers.
  void close();

 private:
  static void log(const std::shared_ptr<ScalarLogger>& logger, const Logged& logged);

  std::unique_ptr<Sink> run_file_;
  std::vector<std::shared_ptr<ScalarLogger>> loggers_;
  OnLoggerFailure on_logger_failure_;
};

}  // namespace telens::debug
