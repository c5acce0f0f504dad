#include "hooks/debug.h"

#include <fmt/format.h>
#include <pthread.h>
#include <unistd.h>

#include <cstdlib>
#include <iostream>
#include <memory>
#include <mutex>
#include <utility>

#include "hooks/builtin.h"
#include "hooks/config/suggestions.h"
#include "hooks/session.h"

namespace telens::debug {
namespace {

struct Process {
  std::unique_ptr<Session> session;
  pid_t owner = 0;  // that began the session
};

// A forked child shares the memory of its parent's session, but not the threads behind it: to the
// child there is no session, and it takes care to leave the parent's alone. Its layers run as if
// nobody watched.
std::unique_ptr<Session>& open_session() {
  static Process process;
  if (process.owner != getpid()) {
    static_cast<void>(process.session.release());
    process.owner = getpid();
  }
  return process.session;
}

void leave_sessions_to_the_parent() {
  static std::once_flag once;
  std::call_once(
      once, [] { pthread_atfork(nullptr, nullptr, [] { hook_points::install(nullptr, 0); }); });
}

Session& session_for(std::string_view function) {
  if (!open_session()) {
    raise<UsageError>("debug.{}: there is no session; call debug.initialize() first", function);
  }
  return *open_session();
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

// Those that are not built in, a line each, for features that take them by name.
std::string explain(const config::StatisticDescriptions& defined) {
  std::string text;
  for (const config::StatisticDescription& each : defined.all()) {
    text += fmt::format("  {}: {}{}{}\n", each.name, each.doc, each.doc.empty() ? "" : "; ",
                        each.owner);
  }
  return text.empty() ? text : fmt::format("Statistics that are not built in:\n{}\n", text);
}

bool takes_defined_statistics(const config::FeatureDescription& description) {
  return description.name == "LogTensorStats" || description.name == "Trigger";
}

}  // namespace

void initialize(const InitializeOptions& options) {
  if (open_session()) {
    raise<UsageError>("debug.initialize: there is a session already; call debug.end_debug() first");
  }
  leave_sessions_to_the_parent();
  open_session() = std::make_unique<Session>(options);
  // Exit handlers and destructors of static objects run in the reverse order: once for each
  // session, so that whatever it was the first to need is still there. Those of ended sessions find
  // nothing.
  std::atexit(close_at_exit);
}

void refuse_to_initialize(int rank, const ReductionGroup& world) {
  InitializeOptions options;
  options.rank = rank;
  options.world = world;
  try {
    accept_on_all_ranks(options, [] { raise<UsageError>("this rank refuses"); });
  } catch (const UsageError&) {
    // The caller has an error of its own.
  }
}

bool is_initialized() { return open_session() != nullptr; }

void step(std::optional<double> loss) {
  if (open_session()) open_session()->step(loss);
}

void end_debug() {
  if (const std::unique_ptr<Session> ending = std::move(open_session())) ending->end();
}

void initialize_training_step(std::int64_t iteration) {
  if (open_session()) open_session()->set_iteration(iteration);
}

std::int64_t iteration() { return session_for("iteration").iteration(); }

void record(std::string_view name, double value) {
  session_for("record").record_scalar(name, value);
}

void log_scalar(std::string_view name, double value, std::int64_t iteration) {
  session_for("log_scalar").log_scalar(name, value, iteration);
}

std::vector<std::pair<std::string, double>> log_tensor_stats(std::string_view layer_name,
                                                             std::string_view tensor_name,
                                                             const at::Tensor& tensor,
                                                             const LogTensorStatsOptions& options) {
  std::vector<std::pair<std::string, double>> values;
  Session& session = session_for("log_tensor_stats");
  for (NamedValue& each : session.log_tensor(layer_name, tensor_name, tensor, options)) {
    values.emplace_back(std::move(each.name), each.value);
  }
  return values;
}

void log_message(std::string_view message, std::string_view layer_name, LogLevel level,
                 std::string_view once_per) {
  session_for("log_message").log_message(message, layer_name, level, once_per);
}

std::vector<std::string> list_features() {
  return qualified_names(session_for("list_features").descriptions());
}

std::string explain_features(const std::vector<std::string>& names) {
  const Session& session = session_for("explain_features");
  const config::Descriptions& descriptions = session.descriptions();
  const std::string defined = explain(*session.defined_statistics().descriptions());
  std::string text;
  for (const std::string& name : names) {
    const auto found = name == "all" ? descriptions.all() : descriptions.find_all(name);
    if (found.empty()) {
      std::vector<std::string> known = qualified_names(descriptions);
      for (const auto& each : descriptions.all()) known.push_back(each->name);
      raise<UsageError>("debug.explain_features: there is no feature '{}'{}", name,
                        config::suggestion(name, known));
    }
    for (const auto& description : found) {
      text += config::explain(*description) + '\n';
      if (takes_defined_statistics(*description)) text += defined;
    }
  }
  return text;
}

void set_tensor_reduction_group(ReductionGroup group, std::string_view layer_name) {
  session_for("set_tensor_reduction_group").set_reduction_group(std::move(group), layer_name);
}

ReductionGroup get_tensor_reduction_group() {
  return session_for("get_tensor_reduction_group").reduction_group();
}

void set_weight_tensor_tp_group_reduce(bool enabled) {
  session_for("set_weight_tensor_tp_group_reduce").set_weight_group_reduce(enabled);
}

std::string run_path() { return session_for("run_path").run_file().path(); }

}  // namespace telens::debug
