// The session API: what a training program calls to have its layers watched.
//
//   telens::debug::initialize({.config_file = "debug.yaml", .log_dir = "logs"});
//   for (...) {
//     ... forward, backward, optimizer ...
//     telens::debug::step(loss);
//   }
//   telens::debug::end_debug();
//
// A process has at most one session at a time. Layers that exist before, and layers that outlive
// the session, are watched all the same. All functions may be called from any thread; of
// step(), end_debug(), initialize_training_step() and log_tensor_stats() one runs at a time.
// end_debug() waits for other threads that are in a layer, or in step(), some seconds at the most;
// what they do after that is not recorded.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/base/error.h"
#include "hooks/scalar_logger.h"

namespace at {
class Tensor;
}
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
  // Over which statistics are reduced by default, and whose ranks agree on the run id and on the
  // tensor-parallel groups of weights. Null: this rank alone; then each rank has to be given the
  // same run id, and weights stay their ranks' own.
  ReductionGroup world = {};
};

// Begins a session. Throws ConfigError (all mistakes of the file at once), or UsageError if there
// is a session already; then nothing has begun, and no file was touched. Every rank of the world
// has to call it.
TELENS_EXPORT void initialize(const InitializeOptions& options = {});

// In place of initialize(), on a rank of the world that cannot call it: the others, which wait for
// its answer, raise an error that names it, and none begins.
TELENS_EXPORT void refuse_to_initialize(int rank, const ReductionGroup& world);

// Whether a session is open.
TELENS_EXPORT bool is_initialized();

// Ends an iteration: to be called after every forward-backward. Hands the statistics of the
// iteration to the loggers and the run file, with the loss if given. Nothing without a session.
// Throws RunStopped, after all that, where a feature asks for it.
TELENS_EXPORT void step(std::optional<double> loss = std::nullopt);

// Ends the session: flushes everything. Nothing without a session. A run that an exception has
// ended says so by its name; where one is just unwinding the stack, it does without being told.
TELENS_EXPORT void end_debug(std::string_view exception = {});

// Sets the number of the running iteration. Nothing without a session.
TELENS_EXPORT void initialize_training_step(std::int64_t iteration);

// The model has a linear layer of another library under this name: features that tell what ran in
// which precision say so. Nothing without a session.
TELENS_EXPORT void note_foreign_layer(std::string_view layer_name, std::string_view kind);

// The number of the running iteration. The functions from here on throw UsageError without a
// session.
TELENS_EXPORT std::int64_t iteration();

// Puts a number of the running iteration into the run file under a name of one's own.
TELENS_EXPORT void record(std::string_view name, double value);

// Hands a value to every logger and to the run file at the next step(). A name
// "<layer>_<tensor>_<statistic>" with a tensor of the contract is a record like any other; the run
// file keeps other names where record() puts them.
TELENS_EXPORT void log_scalar(std::string_view name, double value, std::int64_t iteration);

// Logs statistics of a tensor of the program's own, as sections with the base feature
// LogTensorStats ask for it: at once, in the running iteration or the given one. Returns
// (statistic, value) in the configuration's order; nothing where the tensor is not selected or not
// due.
//
// The statistics are those of all ranks' tensors joined. Over the given group, or the one that
// set_tensor_reduction_group() chose: every rank of it logs and returns them. Without either, over
// the whole world: the last rank logs and returns them, the others nothing. Every rank of the group
// has to make the call.
struct LogTensorStatsOptions {
  std::optional<std::int64_t> iteration = {};
  bool skip_reduction = false;  // each rank logs and returns its own
  ReductionGroup reduction_group = {};
};
TELENS_EXPORT std::vector<std::pair<std::string, double>> log_tensor_stats(
    std::string_view layer_name, std::string_view tensor_name, const at::Tensor& tensor,
    const LogTensorStatsOptions& options = {});

// Writes a message into the log, once per text, layer and `once_per`. WARNING and above also go to
// stderr.
TELENS_EXPORT void log_message(std::string_view message, std::string_view layer_name = {},
                               LogLevel level = LogLevel::info, std::string_view once_per = {});

// The features by name ("transformer_engine.FakeQuant"), and what each does. Names may come
// without the namespace; "all" is every feature. Throws UsageError with the nearest name.
TELENS_EXPORT std::vector<std::string> list_features();
TELENS_EXPORT std::string explain_features(const std::vector<std::string>& names);

// The group over which statistics of activations, gradients and outputs are reduced, of one layer
// or of all that have none of their own; to be set on every rank of the group, in the same
// iteration. Null: the default, InitializeOptions::world.
TELENS_EXPORT void set_tensor_reduction_group(ReductionGroup group,
                                              std::string_view layer_name = {});
TELENS_EXPORT ReductionGroup get_tensor_reduction_group();
// Whether a weight's statistics are reduced over its tensor-parallel group, if that has several
// ranks; else they stay its rank's own. On by default.
TELENS_EXPORT void set_weight_tensor_tp_group_reduce(bool enabled);

// The folder or file that the session records into, for a message to the user; "" if none.
TELENS_EXPORT std::string run_path();

}  // namespace telens::debug
