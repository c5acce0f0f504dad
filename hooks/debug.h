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
#include "hooks/finding.h"
#include "hooks/session_options.h"

namespace at {
class Tensor;
}

namespace telens {
struct ModelTensor;
struct ProgramCollective;
struct SessionParts;
namespace config {
struct FeatureEntry;
}
}  // namespace telens

namespace telens::debug {

// Begins a session. Throws ConfigError (all mistakes of the file at once), or UsageError if there
// is a session already; then nothing has begun, and no file was touched. Every rank of the world
// has to call it.
TELENS_EXPORT void initialize(const InitializeOptions& options = {});
// The same with other features, statistics engine or run file than those that come with TELens.
TELENS_EXPORT void initialize(const InitializeOptions& options, const SessionParts& parts);

// In place of initialize(), on a rank of the world that cannot call it: the others, which wait for
// its answer, raise an error that names it, and none begins.
TELENS_EXPORT void refuse_to_initialize(const ReductionGroup& world);

// True while a session is open.
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

// How long features that compare ranks want to wait for one; nullopt: none does, or there is no
// other rank. The same on all ranks. Nothing is compared before compare_ranks_over() has given them
// a group of all ranks, made for them alone, whose collectives have that time.
TELENS_EXPORT std::optional<std::chrono::seconds> longest_wait_for_ranks();
TELENS_EXPORT void compare_ranks_over(ReductionGroup group);
// True if every rank of the world, which has to call this, does so with `yes`.
TELENS_EXPORT bool all_ranks_say(bool yes, const ReductionGroup& world);
// True until a rank of that group did not come.
TELENS_EXPORT bool compares_ranks();

// True if a feature of this iteration compares tensors of the model over the ranks: show_model()
// before step() then. The same on all ranks. False without a session.
TELENS_EXPORT bool wants_model();
// Shows tensors that layers do not hand to their features. Nothing without a session.
TELENS_EXPORT void show_model(std::span<const ModelTensor> tensors);

// Hands over a collective of the program's own, for features that compare what all ranks sent with
// what came out. Nothing without a session.
TELENS_EXPORT void check_collective(ProgramCollective collective);

// False: a feature has found what a checkpoint of now would keep (Diagnosis, actions veto and
// stop). Before it answers it looks at all iterations that have ended, and waits for that so long
// at the most; of several ranks it answers at once, on all of them what they have agreed on in
// step(). True where nothing asks for a veto, and without a session.
TELENS_EXPORT bool checkpoint_allowed(std::chrono::milliseconds wait = std::chrono::seconds(10));

// The number of the running iteration. The functions from here on throw UsageError without a
// session.
TELENS_EXPORT std::int64_t iteration();

// The findings of features so far, in the order in which they were made (Diagnosis).
TELENS_EXPORT std::vector<Finding> findings();

// Has the function called for each finding from here on, once, on a thread that is neither the
// caller's nor the training's: it may take its time, as to write to a chat. See FindingListener.
TELENS_EXPORT void on_finding(FindingListener listener);

// Puts a number of the running iteration into the run file under a name of one's own. "loss" is the
// loss of the iteration, as step() takes it: where an iteration gets it both ways, the recorded one
// stays, and a warning tells of the first two that differ.
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
TELENS_EXPORT std::vector<std::pair<std::string, double>> log_tensor_stats(
    std::string_view layer_name, std::string_view tensor_name, const at::Tensor& tensor,
    const LogTensorStatsOptions& options = {});

// Adds a logger, in addition to those of initialize(). Takes effect at the next step().
TELENS_EXPORT void add_logger(std::shared_ptr<ScalarLogger> logger);

// True once a layer has run in the session, or a script has passed a tensor to log_tensor_stats();
// true also if the configuration has no sections, which then watch nothing on purpose.
TELENS_EXPORT bool any_layer_ran();

// Returns the enabled features of the running sections that select the layer. The entries live as
// long as the session.
TELENS_EXPORT std::vector<const config::FeatureEntry*> entries_for(std::string_view layer_name);

// Begins each line of the message log that goes to stderr, in all sessions of the process; default
// "telens: ".
TELENS_EXPORT void set_terminal_prefix(std::string prefix);

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
// Switches whether a weight's statistics are reduced over its tensor-parallel group, if that has
// several ranks; else they stay its rank's own. On by default.
TELENS_EXPORT void set_weight_tensor_tp_group_reduce(bool enabled);

// The folder or file that the session records into, for a message to the user; "" if none.
TELENS_EXPORT std::string run_path();

}  // namespace telens::debug
