// A debug session, from initialize to end_debug.
#pragma once

#include <cxxabi.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <exception>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "hooks/config/config.h"
#include "hooks/feature_registry.h"
#include "hooks/finding.h"
#include "hooks/session/feature_set.h"
#include "hooks/session/layer_listener.h"
#include "hooks/session/logs.h"
#include "hooks/session/ranks.h"
#include "hooks/session/sink_fanout.h"
#include "hooks/session/termination_flush.h"
#include "hooks/session_options.h"

namespace telens::debug {

// Mutual exclusion of session API calls: one thread at a time is in one of them.
class Turns {
 public:
  // Runs `work` when it is this thread's turn. Returns its exception; null if it does not throw.
  template <typename Work>
  std::exception_ptr run(const Work& work) {
    const std::lock_guard lock(mutex_);
    const Counted counted(depth_);
    return thrown_by(work);
  }

  // Called under the lock: returns how many nested turns this thread is in.
  int depth() const { return depth_; }

  // Returns a lock, which is locked if this thread's turn comes within the limit.
  std::unique_lock<std::recursive_timed_mutex> wait(std::chrono::seconds limit) {
    return std::unique_lock(mutex_, limit);
  }

  // Returns the exception of `work`; null if it does not throw. The unwinding of a thread that ends
  // is not an exception, and propagates.
  template <typename Work>
  static std::exception_ptr thrown_by(const Work& work) {
    try {
      work();
    } catch (const abi::__forced_unwind&) {
      throw;
    } catch (...) {
      return std::current_exception();
    }
    return nullptr;
  }

 private:
  // Counts a turn until the thread leaves it or ends. The session cannot end while a turn is
  // counted.
  class Counted {
   public:
    explicit Counted(int& depth) : depth_(depth) { ++depth_; }
    ~Counted() { --depth_; }
    Counted(const Counted&) = delete;
    Counted& operator=(const Counted&) = delete;

   private:
    int& depth_;
  };

  std::recursive_timed_mutex mutex_;
  int depth_ = 0;
};

// Watches the losses of a run: the first that is not finite, and iterations with two losses.
// Thread-safe.
class LossWatch {
 public:
  // Returns a sentence for the user when the loss stops being finite; nullopt at all other times.
  std::optional<std::string> look_at(double loss, std::int64_t iteration);

  // Notes a loss from record(), while this iteration runs.
  void note_recorded(double loss, std::int64_t iteration);

  struct StepLoss {
    // false if record() has already set this iteration's loss
    bool is_kept;
    std::optional<std::string> warning_of_other;  // set the first time that the two differ
  };
  // Receives a loss from step(), which ends this iteration.
  StepLoss take_of_step(double loss, std::int64_t iteration);

 private:
  std::mutex mutex_;                                       // guards the members below
  std::optional<std::pair<double, std::int64_t>> finite_;  // last finite loss, and its iteration
  bool is_finite_ = true;
  std::optional<std::pair<double, std::int64_t>> recorded_;  // from record(), and its iteration
  bool told_of_two_ = false;
};

// The features of a session that look for problems of the run. All calls are thread-safe, except
// begin().
class FindingSources {
 public:
  // Called once. The features outlive it.
  void begin(const FeatureSet& features, const std::shared_ptr<Sink>& run_file);

  bool any() const { return !all_.empty(); }
  std::vector<Finding> findings() const;
  void listen(const FindingListener& listener);
  // Returns after examining everything up to this iteration, or after the timeout.
  bool allow_checkpoint(std::int64_t last, std::chrono::milliseconds wait) const;
  void rethrow_interruption();

 private:
  std::vector<FindingSource*> all_;
};

// Returns the options of the call, overridden by the environment. TELENS_CONFIG (the path of a
// configuration) and TELENS_LOG_DIR replace the program's options, so that a program can run
// unchanged under another configuration, as `telens bisect` does; "" counts as unset. The log_dir
// becomes absolute: some files are opened late, when a program like Hydra has changed its working
// directory. Throws UsageError for a path with a NUL character.
InitializeOptions settled(InitializeOptions options);

// Returns true if TELENS_BUDGET is "off". Throws UsageError for any other text.
bool budgets_are_off();

// Loads the configuration. Throws ConfigError.
config::Config load_config(const InitializeOptions& options,
                           const config::Descriptions& descriptions);

// step(), end(), set_iteration() and log_tensor() run on one thread at a time; other threads wait
// for their turn. Meanwhile calls of layers come from any thread, and share the session until they
// return.
class Session final : private FeatureServices {
 public:
  // Throws ConfigError and UsageError; nothing is installed then.
  Session(InitializeOptions options, const SessionParts& parts);

  // Watches layers from here on.
  void begin(std::shared_ptr<Session> self);

  // The session API (hooks/debug.h). Does nothing once the session has ended.
  void step(std::optional<double> loss);
  // Waits for the calls of other threads, kLongestWait each for a step and for calls of layers:
  // they may in turn wait for this thread. A step that takes longer, or the step that this call
  // came from, ends the session itself when it finishes; later observations of layers are lost.
  void end(std::string_view exception = {});
  bool has_ended() const { return has_ended_.load(); }
  void set_iteration(std::int64_t iteration);
  std::int64_t iteration() const { return layers_.iteration(); }
  void record_scalar(std::string_view name, double value);
  void log_scalar(std::string_view name, double value, std::int64_t iteration);
  std::vector<NamedValue> log_tensor(std::string_view layer_name, std::string_view tensor_name,
                                     const TensorHandle& tensor,
                                     const LogTensorStatsOptions& options);
  void log_message(std::string_view message, std::string_view layer_name, LogLevel level,
                   std::string_view once_per);
  void note_foreign_layer(std::string_view layer_name, std::string_view kind);
  void add_logger(std::shared_ptr<ScalarLogger> logger);
  // Returns the entries from every running section that select the layer. Throws ConfigError if two
  // mutually exclusive sections select it.
  std::vector<const config::FeatureEntry*> entries_for(std::string_view layer_name) const;
  bool any_layer_ran() { return layers_.any_ran(); }
  bool has_sections() const { return !config_.sections().empty(); }
  RankChecks& rank_checks() { return rank_checks_; }
  std::optional<std::chrono::seconds> longest_wait_for_ranks() const {
    return rank_checks_.longest_wait(groups_.world());
  }
  void show_model(std::span<const ModelTensor> tensors);
  void check_collective(ProgramCollective collective);
  const config::Descriptions& descriptions() const { return registry_.descriptions(); }
  const StatisticRegistry& defined_statistics() const { return registry_.statistics(); }
  const Sink& run_file() const { return *run_file_; }

  ReductionGroups& groups() { return groups_; }
  FindingSources& findings() { return findings_; }

  static constexpr std::chrono::seconds kLongestWait{5};

 private:
  // FeatureServices
  StatisticsEngine& statistics() override { return *statistics_; }
  SeriesTable& series() override { return series_; }
  const config::Config& config() const override { return config_; }
  SectionSwitches& sections() override { return features_.sections(); }
  const InitializeOptions& options() const override { return options_; }
  void record(const Row& row) override { pending_.add(row); }
  void record_histogram(HistogramRow histogram) override { pending_.add(std::move(histogram)); }
  void record_rows(const record::SomeRows& rows) override { pending_.add(rows); }
  void stop_run(std::string text) override;
  void announce(std::string_view kind, const std::string& text,
                std::string_view layer_name) override {
    events_.announce(kind, text, layer_name);
  }
  void log_message(std::string_view message, std::string_view layer_name, LogLevel level) override {
    events_.message(message, layer_name, level);
  }

  // Runs `work` when it is this thread's turn, and ends the session if that is pending.
  template <typename Work>
  void in_turn(const Work& work);
  void step_in_turn(std::optional<double> loss);
  void end_in_turn();
  void warn_of_missing_calls();

  void accept();  // throws if initialize has to refuse
  void flush();
  // Like flush(), for a process that SIGTERM is about to end; records an event.
  void flush_at_termination();

  Reductions reductions_in(std::int64_t iteration);

  void write_scalar(std::int64_t iteration, std::string_view name, double value);
  void note_number(std::string_view name, double value);
  void note_loss(double loss, std::int64_t iteration);
  void record_loss(double loss);
  void note_loss_of_step(double loss, std::int64_t iteration);
  void decide(const RecordedIteration& recorded,
              std::span<const std::vector<std::int64_t>> words_of_ranks);
  // Returns the rows that the engine has collected, then the rows recorded since the last call.
  RecordedIteration take_recorded(std::vector<Row> collected);
  std::exception_ptr deliver(const RecordedIteration& recorded);
  std::vector<std::string> take_stop_texts();
  void stop_if_asked();
  std::vector<NamedValue> log_tensor_in_turn(std::string_view layer_name,
                                             std::string_view tensor_name,
                                             const TensorHandle& tensor,
                                             const LogTensorStatsOptions& options);

  InitializeOptions options_;
  FeatureRegistry registry_;
  config::Config config_;
  SeriesTable series_;
  EventLog events_;
  ObserverIsolation isolation_;
  std::shared_ptr<Sink> run_file_;
  std::optional<SinkFanout> sinks_;
  std::unique_ptr<StatisticsEngine> statistics_;
  PendingRecords pending_;
  FeatureSet features_;  // may use all members above while it ends
  FindingSources findings_;
  LayerListener layers_;
  std::optional<TerminationFlush> termination_flush_;

  ReductionGroups groups_;
  RankChecks rank_checks_{features_, isolation_, events_};
  std::shared_ptr<void> presence_;  // set if the rank runs separately

  LossWatch losses_;

  Turns turns_;
  std::atomic<bool> end_is_wanted_{false};
  std::atomic<bool> has_ended_{false};

  mutable std::mutex pending_mutex_;  // guards the members below
  std::vector<std::string> stop_texts_;
  std::string exception_;             // the exception that ended the run
  std::vector<NamedNumber> numbers_;  // of the iteration, for deciders
};

}  // namespace telens::debug
