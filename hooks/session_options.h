// How a session begins, and the types of its options.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "core/base/error.h"
#include "hooks/scalar_logger.h"

namespace c10d {
class ProcessGroup;
}

namespace telens::debug {

// Shares ownership of the intrusive pointer that it was made of. Null: this rank alone.
using ReductionGroup = std::shared_ptr<c10d::ProcessGroup>;

// Severity of a message; the numbers are Python's.
enum class LogLevel : int { debug = 10, info = 20, warning = 30, error = 40, critical = 50 };

// A run that a configuration wants to be stopped: expectations that do not hold. Thrown by step().
class TELENS_EXPORT RunStopped : public Error {
 public:
  using Error::Error;
};

// How the run file is written.
struct RecordingOptions {
  bool block_when_full = false;  // false: rows that find the queue full are dropped and counted
  std::uint64_t max_size = 0;    // bytes; 0: no limit
};

struct InitializeOptions {
  std::string config_file = {};                 // path of the YAML file; "": no configuration
  std::optional<std::string> config_text = {};  // YAML (or JSON) instead of a file
  // Folders of plugins, walked recursively: every .so is loaded.
  std::vector<std::string> feature_dirs = {};
  // statistics_logger takes the place of tb_writer, and that of the text file of statistics, which
  // default_logging_enabled brings back. The run file is written in any case.
  std::shared_ptr<ScalarLogger> statistics_logger = {};
  std::shared_ptr<ScalarLogger> tb_writer = {};
  std::string log_dir = ".";
  std::int64_t init_training_step = 0;
  bool default_logging_enabled = false;
  RecordingOptions recording = {};
  std::string run_id =
      {};  // "": TELENS_RUN_ID, else a time stamp; rank 0 of the world decides for all of it
  int rank = 0;
  int world_size = 1;
  // The group over which statistics are reduced by default. Its ranks agree on the run id and on
  // the tensor-parallel groups of weights. Null: this rank alone; then each rank has to be given
  // the same run id, and weights stay their ranks' own.
  ReductionGroup world = {};
  // Throws what the user interrupts initialize() with, while it waits for other ranks.
  std::function<void()> check_interrupt = [] {};
};

// Options of one call of log_tensor_stats(), hooks/debug.h.
struct LogTensorStatsOptions {
  std::optional<std::int64_t> iteration = {};
  bool skip_reduction = false;  // each rank logs and returns its own
  ReductionGroup reduction_group = {};
};

}  // namespace telens::debug
