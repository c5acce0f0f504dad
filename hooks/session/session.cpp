#include "hooks/session/session.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <exception>
#include <iterator>
#include <string_view>
#include <utility>

#include "core/base/error.h"
#include "core/base/io.h"
#include "core/base/text.h"
#include "hooks/config/config.h"
#include "hooks/plugin_loader.h"
#include "hooks/session/ranks.h"

namespace telens::debug {

std::optional<std::string> LossWatch::look_at(double loss, std::int64_t iteration) {
  const std::lock_guard lock(mutex_);
  const bool was_finite = std::exchange(is_finite_, std::isfinite(loss));
  if (is_finite_) {
    finite_ = {loss, iteration};
    return std::nullopt;
  }
  if (!was_finite) return std::nullopt;
  const std::string before = finite_ ? fmt::format("the last finite one was {:.6g} in iteration {}",
                                                   finite_->first, finite_->second)
                                     : std::string("no loss before it was finite");
  return fmt::format(
      "the loss is {} in iteration {}; {}. configs/nan_hunt.yaml, from the last checkpoint on, "
      "names the layer that it comes from",
      std::isnan(loss) ? "NaN"
      : loss > 0       ? "infinite"
                       : "-infinite",
      iteration, before);
}

void LossWatch::note_recorded(double loss, std::int64_t iteration) {
  const std::lock_guard lock(mutex_);
  recorded_ = {loss, iteration};
}

// An iteration with a loss from record() does not get a second one: readers of the run would mix
// them.
LossWatch::StepLoss LossWatch::take_of_step(double loss, std::int64_t iteration) {
  const std::lock_guard lock(mutex_);
  const auto recorded = std::exchange(recorded_, std::nullopt);
  if (!recorded || recorded->second != iteration) return {.is_kept = true, .warning_of_other = {}};
  const bool same = recorded->first == loss || (std::isnan(recorded->first) && std::isnan(loss));
  StepLoss left_out{.is_kept = false, .warning_of_other = {}};
  if (!same && !std::exchange(told_of_two_, true)) {
    left_out.warning_of_other = fmt::format(
        "iteration {} has two losses: {} by debug.record(\"loss\", ...), which the run keeps, and "
        "{} by debug.step(loss=...), which it ignores, here and later; pass the loss only to step, "
        "and record other numbers under other names",
        iteration, recorded->first, loss);
  }
  return left_out;
}

void FindingSources::begin(const FeatureSet& features, const std::shared_ptr<Sink>& run_file) {
  for (const auto& each : features.all()) {
    auto* source = dynamic_cast<FindingSource*>(each->feature.get());
    if (source == nullptr) continue;
    source->begin(run_file);
    all_.push_back(source);
  }
}

std::vector<Finding> FindingSources::findings() const {
  std::vector<Finding> findings;
  for (const FindingSource* each : all_) {
    std::ranges::move(each->findings(), std::back_inserter(findings));
  }
  return findings;
}

void FindingSources::listen(const FindingListener& listener) {
  for (FindingSource* each : all_) each->listen(listener);
}

bool FindingSources::allow_checkpoint(std::int64_t last, std::chrono::milliseconds wait) const {
  using Clock = std::chrono::steady_clock;
  const auto until = Clock::now() + wait;
  return std::ranges::all_of(all_, [&](FindingSource* each) {
    if (!each->may_veto()) return true;
    const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(until - Clock::now());
    each->look_now(last, std::max(left, std::chrono::milliseconds(0)));
    return each->allows_checkpoints();
  });
}

void FindingSources::rethrow_interruption() {
  for (FindingSource* each : all_) {
    if (const auto interruption = each->take_interruption()) std::rethrow_exception(interruption);
  }
}

namespace {

std::string environment(const char* variable) {
  const char* value = std::getenv(variable);
  return value == nullptr ? "" : value;
}

// The system would read the path only up to its NUL character, and so open another file.
void check_path(std::string_view name, const std::string& path) {
  const std::size_t end = path.find('\0');
  if (end == std::string::npos) return;
  raise<UsageError>("initialize: {} must be a path, not '{}' with a NUL character after it", name,
                    path.substr(0, end));
}

}  // namespace

InitializeOptions settled(InitializeOptions options) {
  check_path("log_dir", options.log_dir);
  check_path("config_file", options.config_file);
  if (const std::string path = environment(config::kConfigVariable); !path.empty()) {
    options.config_file = path;
    options.config_text.reset();
  }
  if (const std::string log_dir = environment(config::kLogDirVariable); !log_dir.empty()) {
    options.log_dir = log_dir;
  }
  options.log_dir = absolute_path(options.log_dir);
  return options;
}

bool budgets_are_off() {
  const std::string value = environment(config::kBudgetVariable);
  if (value.empty()) return false;
  if (value == "off") return true;
  raise<UsageError>(
      "the environment variable {} is '{}'; expected 'off' (the budgets of the configuration do "
      "not apply) or nothing",
      config::kBudgetVariable, printable(value));
}

config::Config load_config(const InitializeOptions& options,
                           const config::Descriptions& descriptions) {
  if (options.config_text) {
    return config::load_config_text(*options.config_text, "config", descriptions);
  }
  if (options.config_file.empty()) return {};
  return config::load_config_file(options.config_file, descriptions);
}

namespace {

constexpr std::string_view kLoss = "loss";

void check_iteration(std::string_view what, std::int64_t iteration) {
  if (iteration < 0 || iteration > hook_points::kLastIteration) {
    raise<UsageError>("debug.{}: the iteration cannot be {}; iterations count from 0 to {}", what,
                      iteration, hook_points::kLastIteration);
  }
}

}  // namespace

Session::Session(InitializeOptions options, const SessionParts& parts)
    : options_(std::move(options)),
      registry_(parts.builtin),
      events_(series_.names(), [this] { return iteration(); }),
      isolation_(events_),
      run_file_(parts.make_run_file()),
      statistics_(parts.make_engine(series_, registry_.statistics(),
                                    [this](const std::string& text, std::string_view layer_name) {
                                      events_.announce("statistic_off", text, layer_name);
                                    })),
      pending_(series_),
      layers_(options_.init_training_step, features_, *statistics_, isolation_, events_) {
  presence_ = meet_ranks({options_, config_, events_, groups_, *run_file_}, [this] { accept(); });
  // Nothing is refused after this point: files of an earlier run may be touched.
  const auto on_error = [this](const std::string& error) {
    events_.log(error, {}, LogLevel::warning);
  };
  const auto on_other_run_id = [this](const std::string& text) {
    if (options_.world) {
      events_.message_of_run(text, LogLevel::warning);
    } else {  // no other rank knows about it
      events_.message(text, {}, LogLevel::warning);
    }
  };
  const auto on_logger_failure = [this](const std::string& text) {
    events_.announce("logger_off", text, {});
  };
  run_file_->begin({options_, config_.text(), series_.names(), on_error, on_other_run_id});
  sinks_.emplace(*run_file_, series_.names(), options_, on_logger_failure);
  events_.open(*run_file_, options_.log_dir, options_.rank);
  findings_.begin(features_, run_file_);
}

void Session::begin(std::shared_ptr<Session> self) {
  termination_flush_.emplace([weak = std::weak_ptr(self)] {
    if (const auto session = weak.lock()) session->flush_at_termination();
  });
  layers_.start(std::move(self));
}

void Session::accept() {
  options_ = settled(options_);  // a copy: a refusal requires the world of the original options
  check_iteration("initialize, init_training_step", options_.init_training_step);
  load_plugins(options_.feature_dirs, registry_);
  config_ = load_config(options_, registry_.descriptions());
  features_.make(config_, registry_, *this, isolation_, events_, budgets_are_off());
  run_file_->check(options_);
}

void Session::flush_at_termination() {
  events_.mark(iteration(), "terminated", "SIGTERM", {});
  flush();
}

void Session::flush() {
  run_file_->flush();
  events_.flush();
}

template <typename Work>
void Session::in_turn(const Work& work) {
  const std::exception_ptr thrown = turns_.run([&] {
    if (!has_ended()) work();
  });
  // Runs without the lock: a thread that requests the end either gets it or has notified this
  // thread.
  std::exception_ptr by_the_end;
  if (end_is_wanted_.load()) by_the_end = Turns::thrown_by([this] { end(); });
  // Rethrow the call's own exception first.
  if (thrown) std::rethrow_exception(thrown);
  if (by_the_end) std::rethrow_exception(by_the_end);
}

void Session::stop_run(std::string text) {
  const std::lock_guard lock(pending_mutex_);
  stop_texts_.push_back(std::move(text));
}

// ---- calls of the training program

void Session::log_message(std::string_view message, std::string_view layer_name, LogLevel level,
                          std::string_view once_per) {
  events_.message(message, layer_name, level, once_per);
}

void Session::note_foreign_layer(std::string_view layer_name, std::string_view kind) {
  std::vector<FeatureInstance*> features;
  try {
    features = features_.all_for(layer_name);
  } catch (const ConfigError&) {
    return;  // two sections select it, which is only an error in a layer that calls its features
  }
  for (FeatureInstance* instance : features) {
    isolation_.observe(*instance, layer_name, "note_foreign_layer",
                       [&] { instance->feature->note_foreign_layer(layer_name, kind); });
  }
}

void Session::add_logger(std::shared_ptr<ScalarLogger> logger) {
  in_turn([&] { sinks_->add_logger(std::move(logger)); });
}

std::vector<const config::FeatureEntry*> Session::entries_for(std::string_view layer_name) const {
  std::vector<const config::FeatureEntry*> entries;
  for (const FeatureInstance* each : features_.running_for(layer_name)) {
    entries.push_back(each->entry);
  }
  return entries;
}

void Session::show_model(std::span<const ModelTensor> tensors) {
  in_turn([&] { rank_checks_.look_at(iteration(), tensors); });
}

void Session::check_collective(ProgramCollective collective) {
  if (!collective.group) collective.group = groups_.world();
  in_turn([&] { rank_checks_.look_at(iteration(), collective); });
}

void Session::record_scalar(std::string_view name, double value) {
  if (name == kLoss) return record_loss(value);
  write_scalar(iteration(), name, value);
  note_number(name, value);
}

void Session::log_scalar(std::string_view name, double value, std::int64_t iteration) {
  pending_.add(name, value, iteration);
}

std::vector<NamedValue> Session::log_tensor(std::string_view layer_name,
                                            std::string_view tensor_name,
                                            const TensorHandle& tensor,
                                            const LogTensorStatsOptions& options) {
  std::vector<NamedValue> values;
  in_turn([&] { values = log_tensor_in_turn(layer_name, tensor_name, tensor, options); });
  return values;
}

std::vector<NamedValue> Session::log_tensor_in_turn(std::string_view layer_name,
                                                    std::string_view tensor_name,
                                                    const TensorHandle& tensor,
                                                    const LogTensorStatsOptions& options) {
  const NoGradScope no_grad;
  const std::int64_t iteration = options.iteration.value_or(this->iteration());
  const auto [group, logs] =
      groups_.for_script(layer_name, options, options_.rank + 1 == options_.world_size);
  layers_.note_script(layer_name);
  std::vector<NamedValue> values;
  for (FeatureInstance* instance : features_.running_for(layer_name)) {
    auto* feature = dynamic_cast<ScriptDrivenFeature*>(instance->feature.get());
    if (feature == nullptr) continue;
    for (NamedValue& each :
         feature->log_tensor({layer_name, iteration}, tensor_name, tensor, group)) {
      values.push_back(std::move(each));
    }
  }
  if (!logs) return {};
  const std::string group_name = get_name(group);
  RecordedIteration recorded;
  for (const NamedValue& each : values) {
    const Series& series = series_.find_or_add(
        {.layer = layer_name, .tensor = tensor_name, .statistic = each.name, .group = group_name});
    recorded.of<Row>().push_back({iteration, &series, each.value});
  }
  sinks_->deliver(recorded);
  return values;
}

void Session::set_iteration(std::int64_t iteration) {
  check_iteration("initialize_training_step", iteration);
  in_turn([&] {
    layers_.set_iteration(iteration);
    statistics_->begin_iteration(iteration);
  });
}

Reductions Session::reductions_in(std::int64_t iteration) {
  Reductions reductions = groups_.reductions();
  reductions.tensors_are_due = features_.reads_statistics(/*of_weights=*/false, iteration);
  reductions.weights_are_due = features_.reads_statistics(/*of_weights=*/true, iteration);
  reductions.decisions = features_.decisions().words();
  reductions.decisions_are_due = features_.decisions().waiting();
  return reductions;
}

RecordedIteration Session::take_recorded(std::vector<Row> collected) {
  sections().keep(iteration(), collected);
  RecordedIteration recorded = pending_.take();
  auto& rows = recorded.of<Row>();
  rows.insert(rows.begin(), collected.begin(), collected.end());
  return recorded;
}

void Session::write_scalar(std::int64_t iteration, std::string_view name, double value) {
  const record::Scalar scalar{.iteration = iteration,
                              .name = series_.names().id(record::Dictionary::word, name),
                              .value = value};
  run_file_->rows(std::span(&scalar, 1));
}

// Notes a number of the running iteration for deciders.
void Session::note_number(std::string_view name, double value) {
  if (!features_.decisions().any()) return;
  const std::lock_guard lock(pending_mutex_);
  numbers_.push_back({std::string(name), value});
}

// Reports the first loss that is not finite at once, independent of the configuration.
void Session::note_loss(double loss, std::int64_t iteration) {
  write_scalar(iteration, kLoss, loss);
  note_number(kLoss, loss);
  if (const auto text = losses_.look_at(loss, iteration)) {
    events_.announce("loss_not_finite", *text, {});
  }
}

void Session::record_loss(double loss) {
  const std::int64_t running = iteration();
  note_loss(loss, running);
  losses_.note_recorded(loss, running);
}

void Session::note_loss_of_step(double loss, std::int64_t iteration) {
  const LossWatch::StepLoss of_step = losses_.take_of_step(loss, iteration);
  if (of_step.is_kept) note_loss(loss, iteration);
  if (of_step.warning_of_other) events_.message(*of_step.warning_of_other, {}, LogLevel::warning);
}

// Calls the deciders at the end of an iteration.
void Session::decide(const RecordedIteration& recorded,
                     std::span<const std::vector<std::int64_t>> words_of_ranks) {
  Decisions& decisions = features_.decisions();
  if (!decisions.any()) return;
  std::vector<NamedNumber> numbers = [this] {
    const std::lock_guard lock(pending_mutex_);
    return std::exchange(numbers_, {});
  }();
  for (const record::Scalar& each : recorded.of<record::Scalar>()) {
    numbers.push_back({series_.names().name(record::Dictionary::word, each.name), each.value});
  }
  if (!words_of_ranks.empty()) decisions.follow(iteration(), words_of_ranks);
  decisions.decide({iteration(), recorded.of<Row>(), numbers});
  if (!has_several_ranks(groups_.world())) decisions.follow_own(iteration());
  const std::vector<Row> written = sections().take_written();
  if (!written.empty()) run_file_->rows(std::span<const Row>(written));
}

void Session::step(std::optional<double> loss) {
  in_turn([&] {
    if (turns_.depth() > 1) {
      raise<UsageError>(
          "debug.step: it was called by a feature or a logger that it has called itself; call it "
          "at the end of every forward-backward");
    }
    step_in_turn(loss);
  });
}

// The iteration ends before a logger is called, so a logger that interrupts leaves the session
// consistent.
void Session::step_in_turn(std::optional<double> loss) {
  const std::int64_t ending = iteration();
  for (const auto& each : features_.all()) {
    const CostTimer cost(each->section->budget());
    isolation_.observe(*each, {}, "step", [&] { each->feature->step(ending); });
  }
  const double begin = sections().measures() ? seconds_now() : 0;
  if (loss) note_loss_of_step(*loss, ending);
  // Deciders require this iteration's rows now.
  const Waiting waiting = features_.decisions().look_at_rows(ending) ? Waiting::yes : Waiting::no;
  Collected collected = statistics_->collect(ending, reductions_in(ending), waiting);
  const double checks_at = sections().measures() ? seconds_now() : 0;
  rank_checks_.run(ending);
  if (sections().measures()) collected.exchange_seconds += seconds_now() - checks_at;
  const RecordedIteration recorded = take_recorded(std::move(collected.rows));
  // Before the decisions, which also use this iteration.
  const double collected_at = sections().measures() ? seconds_now() : 0;
  const double waited = collected.exchange_seconds;
  sections().end_step(collected_at - begin - waited, waited);
  decide(recorded, collected.decisions);
  layers_.end_iteration();
  if (sections().end_iteration()) layers_.wake();
  statistics_->begin_iteration(iteration());
  // If one rank is interrupted, it still has to join all ranks' decisions.
  const std::exception_ptr from_a_logger = deliver(recorded);
  if (sections().measures()) sections().charge_after_step(seconds_now() - collected_at);
  stop_if_asked();
  findings_.rethrow_interruption();
  if (from_a_logger) std::rethrow_exception(from_a_logger);
}

// Returns the exception that interrupted a logger.
std::exception_ptr Session::deliver(const RecordedIteration& recorded) {
  try {
    sinks_->deliver(recorded);
  } catch (const std::exception&) {
    return std::current_exception();
  }
  return nullptr;
}

std::vector<std::string> Session::take_stop_texts() {
  const std::lock_guard lock(pending_mutex_);
  return std::exchange(stop_texts_, {});
}

void Session::stop_if_asked() {
  const std::vector<std::string> texts = take_stop_texts();
  if (texts.empty()) return;
  const std::string message = fmt::format("{}", fmt::join(texts, "\n"));
  // The exception reports it on stderr.
  events_.log_in_file(message, LogLevel::error);
  events_.mark(iteration() - 1, "stopped", message, {});
  flush();
  throw RunStopped(message);
}

// Not called for a program that an exception ended: it may not have reached its layers or its first
// step.
void Session::warn_of_missing_calls() {
  // Layers of other ranks are not known here.
  const LogLevel level = options_.world_size > 1 ? LogLevel::info : LogLevel::warning;
  for (const std::string& text : layers_.idle_sections(config_)) events_.message(text, {}, level);
  if (const auto text = layers_.missing_steps()) events_.message(*text, {}, LogLevel::warning);
}

// Also called if an exception of this name ended the program; "" for none.
void Session::end(std::string_view exception) {
  {
    const std::lock_guard lock(pending_mutex_);
    if (!exception.empty()) exception_ = exception;
  }
  auto lock = turns_.wait(kLongestWait);
  if (!lock.owns_lock()) {
    end_is_wanted_.store(true);
    if (!lock.try_lock()) {
      events_.message(
          fmt::format("debug.end_debug: another thread is in debug.step() for more than {} s; the "
                      "session ends when that is done",
                      kLongestWait.count()),
          {}, LogLevel::warning);
      return;
    }
  }
  if (has_ended()) return;
  if (turns_.depth() > 0) {  // a feature or a logger called by step() requests it
    end_is_wanted_.store(true);
    return;
  }
  has_ended_.store(true);
  end_in_turn();
}

void Session::end_in_turn() {
  if (!layers_.stop(kLongestWait)) {
    events_.message(
        fmt::format("debug.end_debug: another thread has been in a layer for more than {} s; "
                    "its features are not recorded from here on",
                    kLongestWait.count()),
        {}, LogLevel::warning);
  }
  for (const auto& each : features_.all()) {
    isolation_.observe(*each, {}, "end", [&] { each->feature->end(); });
  }
  isolation_.close();
  const std::string exception = [this] {
    const std::lock_guard lock(pending_mutex_);
    return exception_;
  }();
  if (exception.empty()) warn_of_missing_calls();
  // The other ranks may be gone: data of the unfinished step stays local to this rank.
  const std::exception_ptr from_a_logger =
      deliver(take_recorded(statistics_->collect(iteration(), {}, Waiting::yes).rows));
  const std::vector<std::string> texts = take_stop_texts();
  for (const std::string& text : texts) events_.message(text, {}, LogLevel::error);
  flush();
  // Released here, not when the last call releases the session, which may be at any time on any
  // thread.
  termination_flush_.reset();
  presence_.reset();
  sinks_->let_go_of_loggers();
  run_file_->end(exception);
  findings_.rethrow_interruption();
  if (from_a_logger) std::rethrow_exception(from_a_logger);
}

}  // namespace telens::debug
