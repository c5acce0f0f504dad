// Hands what was logged to those who keep it: the run file and the loggers.
#pragma once

#include <memory>
#include <vector>

#include "hooks/debug.h"
#include "hooks/outbox.h"
#include "hooks/sink.h"

namespace telens::debug {

// One thread.
class Delivery {
 public:
  // The loggers are those of the options; statistics_logger takes the place of tb_writer, and that
  // of the text file.
  Delivery(std::unique_ptr<Sink> run_file, const InitializeOptions& options);

  Sink& run_file() const { return *run_file_; }

  // Rows that nobody asked for, and histograms, ledger and blocks, go to the run file alone.
  void deliver(const Logged& logged);

 private:
  std::unique_ptr<Sink> run_file_;
  std::vector<std::shared_ptr<ScalarLogger>> loggers_;
};

}  // namespace telens::debug
