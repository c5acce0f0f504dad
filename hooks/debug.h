// The session API: a training program calls these functions to have its layers watched.
//
//   telens::debug::initialize({.config_file = "debug.yaml", .log_dir = "logs"});
//   for (...) {
//     ... forward, backward, optimizer ...
//     telens::debug::step(loss);
//   }
//   telens::debug::end_debug();
//
// A process has at most one session at a time. Layers that were created before the session, and
// layers that outlive it, are also watched. All functions may be called from any thread; step(),
// end_debug(), initialize_training_step() and log_tensor_stats() exclude each other. end_debug()
// waits at most some seconds for other threads that are in a layer or in step(); their later
// activity is not recorded.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/base/error.h"
#include "core/base/tensor_handle.h"
#include "hooks/finding.h"
#include "hooks/session_options.h"

namespace telens {
struct ModelTensor;
struct ProgramCollective;
struct SessionParts;
namespace config {
struct FeatureEntry;
}
}  // namespace telens

namespace telens::debug {

// Begins a session. Throws ConfigError (all mistakes of the file at once), or UsageError if a
// session is open already; in both cases nothing has begun and no file was touched. Every rank of
// the world has to call it.
TELENS_EXPORT void initialize(const InitializeOptions& options = {});
// Like initialize(options), with other features, statistics engine or run file than the built-in
// ones.
TELENS_EXPORT void initialize(const InitializeOptions& options, const SessionParts& parts);

// Call this instead of initialize() on a rank of the world that cannot call initialize(). The other
// ranks, which wait for this rank, throw an error that names it, and no rank begins.
TELENS_EXPORT void refuse_to_initialize(const ReductionGroup& world);

// True while a session is open.
TELENS_EXPORT bool is_initialized();

// Ends an iteration; call it after every forward-backward. Passes the statistics of the iteration
// to the loggers and the run file, with the loss if given. Does nothing without a session. Finally
// throws RunStopped if a feature requests it.
TELENS_EXPORT void step(std::optional<double> loss = std::nullopt);

// Ends the session: flushes everything. Does nothing without a session. `exception` is the name of
// the exception that ended the run, which the run file records; if the stack is being unwound at
// the time of the call, this is detected automatically.
TELENS_EXPORT void end_debug(std::string_view exception = {});

// Sets the number of the running iteration. Does nothing without a session.
TELENS_EXPORT void initialize_training_step(std::int64_t iteration);

// Notes that the model has a linear layer of another library under this name. Features that report
// the precisions of layers include it. Does nothing without a session.
TELENS_EXPORT void note_foreign_layer(std::string_view layer_name, std::string_view kind);

// Returns the longest time that features that compare ranks wait for a rank; nullopt if no feature
// compares ranks, or if there is only one rank. Every rank returns the same. Nothing is compared
// before compare_ranks_over() has set a group that contains all ranks, used for nothing else, whose
// collectives have that timeout.
TELENS_EXPORT std::optional<std::chrono::seconds> longest_wait_for_ranks();
TELENS_EXPORT void compare_ranks_over(ReductionGroup group);
// Returns true if every rank of the world passes `yes`. Every rank of the world has to call it.
TELENS_EXPORT bool all_ranks_say(bool yes, const ReductionGroup& world);
// Returns true until a rank of that group fails to arrive.
TELENS_EXPORT bool compares_ranks();

// Returns true if a feature of this iteration compares tensors of the model over the ranks; if so,
// call show_model() before step(). Every rank returns the same. Returns false without a session.
TELENS_EXPORT bool wants_model();
// Shows tensors that layers do not pass to their features. Does nothing without a session.
TELENS_EXPORT void show_model(std::span<const ModelTensor> tensors);

// Passes a collective of the program to features that compare all ranks' inputs with the result.
// Does nothing without a session.
TELENS_EXPORT void check_collective(ProgramCollective collective);

// Returns false if a feature has found a problem that a checkpoint saved now would contain
// (Diagnosis, actions veto and stop). On one rank it first examines all iterations that have ended,
// and waits at most `wait` for that. With several ranks it returns at once, and on all ranks the
// same: the answer that they agreed on in step(). Returns true if no feature requests a veto, and
// without a session.
TELENS_EXPORT bool checkpoint_allowed(std::chrono::milliseconds wait = std::chrono::seconds(10));

// Returns the number of the running iteration. This function and all below throw UsageError without
// a session.
TELENS_EXPORT std::int64_t iteration();

// Returns the findings of features so far, in the order in which they were made (Diagnosis).
TELENS_EXPORT std::vector<Finding> findings();

// Calls the function once for each later finding, on a thread that is neither the caller's nor the
// training's, so it may take its time, for example to write to a chat. See FindingListener.
TELENS_EXPORT void on_finding(FindingListener listener);

// Records a number of the running iteration in the run file under a custom name. "loss" is the loss
// of the iteration, as in step(): if an iteration gets it both ways, the recorded one is kept, and
// a warning reports the first two that differ.
TELENS_EXPORT void record(std::string_view name, double value);

// Passes a value to every logger and to the run file at the next step(). A name
// "<layer>_<tensor>_<statistic>" with a tensor of the contract is recorded as that statistic; the
// run file stores other names like record() does.
TELENS_EXPORT void log_scalar(std::string_view name, double value, std::int64_t iteration);

// Logs statistics of a tensor of the program, as sections with the base feature LogTensorStats
// request: immediately, in the running iteration or the given one. Returns (statistic, value) in
// the configuration's order; returns nothing if the tensor is not selected or not due.
//
// The statistics are computed over all ranks' joined tensors. With the given group, or the group
// that set_tensor_reduction_group() chose, every rank of the group logs and returns them. Without
// either, they are computed over the whole world: the last rank logs and returns them, and the
// other ranks return nothing. Every rank of the group has to make the call.
TELENS_EXPORT std::vector<std::pair<std::string, double>> log_tensor_stats(
    std::string_view layer_name, std::string_view tensor_name, const TensorHandle& tensor,
    const LogTensorStatsOptions& options = {});

// Adds a logger, in addition to the loggers of initialize(). Takes effect at the next step().
TELENS_EXPORT void add_logger(std::shared_ptr<ScalarLogger> logger);

// Returns true once a layer has run in the session, or a script has passed a tensor to
// log_tensor_stats(). Also returns true if the configuration does not have sections, since it then
// watches nothing on purpose.
TELENS_EXPORT bool any_layer_ran();

// Returns the enabled features of the running sections that select the layer. The entries live as
// long as the session.
TELENS_EXPORT std::vector<const config::FeatureEntry*> entries_for(std::string_view layer_name);

// Sets the prefix of the message log's lines on stderr, in all sessions of the process; the default
// is "telens: ".
TELENS_EXPORT void set_terminal_prefix(std::string prefix);

// Writes a message into the log, once per text, layer and `once_per`. WARNING and above also go to
// stderr.
TELENS_EXPORT void log_message(std::string_view message, std::string_view layer_name = {},
                               LogLevel level = LogLevel::info, std::string_view once_per = {});

// list_features() returns the features by name ("transformer_engine.FakeQuant"), explain_features()
// describes each of the named ones. Names may omit the namespace; "all" is every feature. Throws
// UsageError with the nearest name.
TELENS_EXPORT std::vector<std::string> list_features();
TELENS_EXPORT std::string explain_features(const std::vector<std::string>& names);

// Sets the group over which statistics of activations, gradients and outputs are reduced, for one
// layer or for all layers without a group; call it on every rank of the group, in the same
// iteration. Null restores the default, InitializeOptions::world.
TELENS_EXPORT void set_tensor_reduction_group(ReductionGroup group,
                                              std::string_view layer_name = {});
TELENS_EXPORT ReductionGroup get_tensor_reduction_group();
// Enables or disables the reduction of a weight's statistics over its tensor-parallel group, if
// that has several ranks; otherwise they stay local to the rank. On by default.
TELENS_EXPORT void set_weight_tensor_tp_group_reduce(bool enabled);

// Returns the folder or file that the session records into, for a message to the user; "" if none.
TELENS_EXPORT std::string run_path();

}  // namespace telens::debug
