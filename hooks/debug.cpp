#include "hooks/debug.h"

#include <fmt/format.h>
#include <pthread.h>

#include <algorithm>
#include <cstdlib>
#include <iostream>
#include <memory>
#include <mutex>
#include <optional>
#include <utility>

#include "hooks/config/suggestions.h"
#include "hooks/feature_registry.h"
#include "hooks/rendezvous.h"
#include "hooks/session/session.h"

namespace telens::debug {
namespace {

// Never destroyed: threads may still run while the process exits.
struct Process {
  std::mutex mutex;  // guards the members below; nothing is called while it is locked
  std::shared_ptr<Session> session;
  std::weak_ptr<Session> ending;  // the last session, as long as a call shares it
  bool begins = false;            // a thread is in initialize()
};

Process& process() {
  static auto& instance = *new Process;
  return instance;
}

// A forked child shares the memory of its parent's session, but not the threads that serve it. The
// child does not have a session, and it avoids touching the parent's. Its layers run unwatched.
void leave_sessions_to_the_parent() {
  hook_points::prepare_forks();
  static std::once_flag once;
  std::call_once(once, [] {
    // Runs first at a fork, since the gate of the hook points was registered earlier.
    const auto prepare = [] {
      process().mutex.lock();
      LayerListener::prepare_fork();
    };
    const auto in_parent = [] {
      LayerListener::after_fork();
      process().mutex.unlock();
    };
    const auto in_child = [] {
      LayerListener::after_fork();
      static_cast<void>(new std::shared_ptr<Session>(std::move(process().session)));
      process().ending.reset();
      process().begins = false;
      process().mutex.unlock();
    };
    pthread_atfork(prepare, in_parent, in_child);
  });
}

// Returns the open session, which lives until the caller releases it; or null.
std::shared_ptr<Session> open_session() {
  const std::lock_guard lock(process().mutex);
  return process().session;
}

std::shared_ptr<Session> session_for(std::string_view function) {
  std::shared_ptr<Session> session = open_session();
  if (!session) {
    raise<UsageError>("debug.{}: no session is open; call debug.initialize() first", function);
  }
  return session;
}

// Keeps other threads from beginning a session meanwhile.
class Beginning {
 public:
  Beginning() {
    const std::lock_guard lock(process().mutex);
    if (process().session || process().begins) {
      raise<UsageError>(
          "debug.initialize: there is a session already; call debug.end_debug() first");
    }
    if (const auto ending = process().ending.lock(); ending && !ending->has_ended()) {
      raise<UsageError>(
          "debug.initialize: the session before has not ended, another thread is still in its "
          "debug.step(); wait for that thread");
    }
    process().begins = true;
  }
  ~Beginning() {
    const std::lock_guard lock(process().mutex);
    process().begins = false;
  }
  Beginning(const Beginning&) = delete;
  Beginning& operator=(const Beginning&) = delete;
};

bool another_thread_begins() {
  const std::lock_guard lock(process().mutex);
  return process().begins;
}

void close_at_exit() {
  try {
    end_debug();
  } catch (const std::exception& error) {
    std::cerr << "telens: while closing the debug session at exit: " << error.what() << '\n';
  }
}

std::vector<std::string> qualified_names(const config::Descriptions& descriptions) {
  std::vector<std::string> names;
  for (const auto& each : descriptions.all()) names.push_back(config::qualified_name(*each));
  return names;
}

// Lists the statistics that are not built in, one per line, for features that select them by name.
std::string explain(const config::StatisticDescriptions& defined) {
  std::string text;
  for (const config::StatisticDescription& each : defined.all()) {
    text += fmt::format("  {}: {}{}{}\n", each.name, each.doc, each.doc.empty() ? "" : "; ",
                        each.owner);
  }
  return text.empty() ? text : fmt::format("Statistics that are not built in:\n{}\n", text);
}

}  // namespace

void initialize(const InitializeOptions& options) { initialize(options, default_parts()); }

void initialize(const InitializeOptions& options, const SessionParts& parts) {
  std::optional<Beginning> beginning;
  try {
    beginning.emplace();
  } catch (const UsageError&) {
    if (!another_thread_begins()) end_wait_of_others(options.world);
    throw;
  }
  leave_sessions_to_the_parent();
  const auto session = std::make_shared<Session>(options, parts);
  session->begin(session);
  {
    const std::lock_guard lock(process().mutex);
    process().session = session;
  }
  // Exit handlers and destructors of static objects run in the reverse order of registration.
  // Registering once per session keeps objects alive that the session was the first to use.
  // Handlers of ended sessions do nothing.
  std::atexit(close_at_exit);
}

void refuse_to_initialize(const ReductionGroup& world) {
  if (is_initialized()) {
    end_wait_of_others(world);
  } else {
    refuse_rendezvous(world);
  }
}

void note_foreign_layer(std::string_view layer_name, std::string_view kind) {
  if (const auto session = open_session()) session->note_foreign_layer(layer_name, kind);
}

std::optional<std::chrono::seconds> longest_wait_for_ranks() {
  const auto session = open_session();
  return session == nullptr ? std::nullopt : session->longest_wait_for_ranks();
}

void compare_ranks_over(ReductionGroup group) {
  if (const auto session = open_session()) session->rank_checks().exchange_over(std::move(group));
}

bool all_ranks_say(bool yes, const ReductionGroup& world) {
  return std::ranges::all_of(gather_notes(yes ? 1 : 0, *world),
                             [](std::int64_t note) { return note == 1; });
}

bool compares_ranks() {
  const auto session = open_session();
  return session != nullptr && session->rank_checks().is_on();
}

bool wants_model() {
  const auto session = open_session();
  return session != nullptr && session->rank_checks().want_model(session->iteration());
}

void show_model(std::span<const ModelTensor> tensors) {
  if (const auto session = open_session()) session->show_model(tensors);
}

void check_collective(ProgramCollective collective) {
  if (const auto session = open_session()) session->check_collective(std::move(collective));
}

bool is_initialized() { return open_session() != nullptr; }

void step(std::optional<double> loss) {
  if (const auto session = open_session()) session->step(loss);
}

void end_debug(std::string_view exception) {
  if (exception.empty() && std::uncaught_exceptions() > 0) exception = "a C++ exception";
  std::shared_ptr<Session> ending;
  {
    const std::lock_guard lock(process().mutex);
    ending.swap(process().session);
    // An earlier call may have left the end of the session to a step on another thread. Try again:
    // that step may have finished by now.
    if (!ending) ending = process().ending.lock();
    if (ending) process().ending = ending;
  }
  if (ending) ending->end(exception);
}

void initialize_training_step(std::int64_t iteration) {
  if (const auto session = open_session()) session->set_iteration(iteration);
}

bool checkpoint_allowed(std::chrono::milliseconds wait) {
  const auto session = open_session();
  return !session || session->findings().allow_checkpoint(session->iteration() - 1, wait);
}

std::int64_t iteration() { return session_for("iteration")->iteration(); }

std::vector<Finding> findings() { return session_for("findings")->findings().findings(); }

void on_finding(FindingListener listener) {
  const std::shared_ptr<Session> session = session_for("on_finding");
  if (!listener) raise<UsageError>("debug.on_finding: expected a function, came an empty one");
  if (!session->findings().any()) {
    session->log_message(
        "debug.on_finding: no section of the configuration has the feature Diagnosis, so that "
        "nothing will be found",
        {}, LogLevel::warning, {});
  }
  session->findings().listen(listener);
}

void record(std::string_view name, double value) {
  session_for("record")->record_scalar(name, value);
}

void log_scalar(std::string_view name, double value, std::int64_t iteration) {
  session_for("log_scalar")->log_scalar(name, value, iteration);
}

std::vector<std::pair<std::string, double>> log_tensor_stats(std::string_view layer_name,
                                                             std::string_view tensor_name,
                                                             const TensorHandle& tensor,
                                                             const LogTensorStatsOptions& options) {
  std::vector<std::pair<std::string, double>> values;
  const std::shared_ptr<Session> session = session_for("log_tensor_stats");
  for (NamedValue& each : session->log_tensor(layer_name, tensor_name, tensor, options)) {
    values.emplace_back(std::move(each.name), each.value);
  }
  return values;
}

void log_message(std::string_view message, std::string_view layer_name, LogLevel level,
                 std::string_view once_per) {
  session_for("log_message")->log_message(message, layer_name, level, once_per);
}

void add_logger(std::shared_ptr<ScalarLogger> logger) {
  session_for("add_logger")->add_logger(std::move(logger));
}

bool any_layer_ran() {
  const std::shared_ptr<Session> session = session_for("any_layer_ran");
  return session->any_layer_ran() || !session->has_sections();
}

std::vector<const config::FeatureEntry*> entries_for(std::string_view layer_name) {
  return session_for("entries_for")->entries_for(layer_name);
}

void set_terminal_prefix(std::string prefix) { MessageLog::set_prefix(std::move(prefix)); }

std::vector<std::string> list_features() {
  return qualified_names(session_for("list_features")->descriptions());
}

std::string explain_features(const std::vector<std::string>& names) {
  const std::shared_ptr<Session> session = session_for("explain_features");
  const config::Descriptions& descriptions = session->descriptions();
  const std::string defined = explain(*session->defined_statistics().descriptions());
  std::string text;
  for (const std::string& name : names) {
    const auto found = name == "all" ? descriptions.all() : descriptions.find_all(name);
    if (found.empty()) {
      std::vector<std::string> known = qualified_names(descriptions);
      for (const auto& each : descriptions.all()) known.push_back(each->name);
      raise<UsageError>("debug.explain_features: unknown feature '{}'{}", name,
                        config::suggestion(name, known));
    }
    for (const auto& description : found) {
      text += config::explain(*description) + '\n';
      if (description->names_statistics) text += defined;
    }
  }
  return text;
}

void set_tensor_reduction_group(ReductionGroup group, std::string_view layer_name) {
  session_for("set_tensor_reduction_group")->groups().choose(std::move(group), layer_name);
}

ReductionGroup get_tensor_reduction_group() {
  return session_for("get_tensor_reduction_group")->groups().of_tensors();
}

void set_weight_tensor_tp_group_reduce(bool enabled) {
  session_for("set_weight_tensor_tp_group_reduce")->groups().reduce_weights(enabled);
}

std::string run_path() { return session_for("run_path")->run_file().path(); }

}  // namespace telens::debug
