// The options that a session begins with, and their types.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/error.h"
#include "hooks/rank_group.h"

namespace telens::debug {

// Receives statistics in addition to the run file: a TensorBoard writer or a custom logger. Only
// called in step() and end_debug(), on the thread that calls those, in row order, with the
// iteration that a row belongs to. A logger that throws is reported once and not called again in
// that session; training continues.
class TELENS_EXPORT ScalarLogger {
 public:
  virtual ~ScalarLogger() = default;

  // name: "<layer>_<tensor>_<statistic>".
  virtual void log_scalar(std::string_view name, double value, std::int64_t iteration) = 0;
  virtual void flush() {}
};

// Severity of a message; the numbers are Python's.
enum class LogLevel : int { debug = 10, info = 20, warning = 30, error = 40, critical = 50 };

// Thrown by step() to stop a run that violates the configuration's expectations.
class TELENS_EXPORT RunStopped : public Error {
 public:
  using Error::Error;
};

// How the run file is written.
struct RecordingOptions {
  bool block_when_full = false;  // if false, rows are dropped and counted when the queue is full
  std::uint64_t max_size = 0;    // bytes; 0 for no limit
};

struct InitializeOptions {
  std::string config_file = {};                 // path of the YAML file; "" for no configuration
  std::optional<std::string> config_text = {};  // YAML (or JSON) instead of a file
  // Folders of plugins, walked recursively: every .so is loaded.
  std::vector<std::string> feature_dirs = {};
  // statistics_logger replaces tb_writer. Either replaces the text file of statistics, which
  // default_logging_enabled restores. The run file is always written.
  std::shared_ptr<ScalarLogger> statistics_logger = {};
  std::shared_ptr<ScalarLogger> tb_writer = {};
  std::string log_dir = ".";
  std::int64_t init_training_step = 0;
  bool default_logging_enabled = false;
  RecordingOptions recording = {};
  std::string run_id =
      {};  // "": TELENS_RUN_ID, else a time stamp; rank 0 decides for the whole world
  int rank = 0;
  int world_size = 1;
  // The group over which statistics are reduced by default. Its ranks agree on the run id and on
  // the tensor-parallel groups of weights. Null if there is only this rank; if several ranks run
  // without a group, each has to be given the same run id, and weights stay local to their ranks.
  ReductionGroup world = {};
  // Throws if the user interrupts initialize() while it waits for other ranks.
  std::function<void()> check_interrupt = [] {};
};

// Options of a call of log_tensor_stats(), hooks/debug.h.
struct LogTensorStatsOptions {
  std::optional<std::int64_t> iteration = {};
  bool skip_reduction = false;  // each rank logs and returns its own
  ReductionGroup reduction_group = {};
};

}  // namespace telens::debug
