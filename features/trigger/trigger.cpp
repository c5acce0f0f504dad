// Trigger: watches numbers at the end of iterations, and switches sections, writes the kept data,
// or stops the run.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <exception>
#include <future>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "features/builtin_features.h"
#include "features/trigger/operand_samples.h"
#include "features/trigger/trigger_options.h"
#include "hooks/decisions.h"
#include "hooks/engine/one_pass_engine.h"
#include "hooks/feature_registry.h"
#include "record/tensor_dump.h"

namespace telens::features {
namespace {

class Trigger final : public Observer, private Decider {
 public:
  Trigger(const config::FeatureEntry& entry, FeatureServices& services);

  RoutingCalls routing_calls() const override;
  bool reads_statistics(TensorName tensor, std::int64_t iteration) const override;
  bool may_watch_wgrad() const override { return looks_at(TensorName::wgrad); }
  RoutingAnswer inspect_tensor_enabled(const FeatureCall& at, TensorName tensor) override;
  void observe_tensor(const FeatureCall& at, const ObservedTensor& call,
                      TensorReading& reading) override;
  Decider* decider() override { return this; }
  bool follows_schedules() const override { return true; }
  bool looks_at_attention() const override {
    return std::ranges::any_of(kAttentionTensors, [this](TensorName tensor) {
      return requests_[static_cast<std::size_t>(tensor)].has_value();
    });
  }
  bool can_be_captured() const override { return !operands_; }
  void step(std::int64_t iteration) override;
  void end() override;

 private:
  // Decider
  bool decides(std::int64_t iteration) const override;
  // Returns 0, or 1 + the index of the condition that holds.
  std::int64_t decide(const EndedIteration& ended) override;
  void follow(std::int64_t iteration, std::span<const std::int64_t> wanted) override;

  // One condition, and the values of a step to which it applies.
  struct Watch {
    explicit Watch(const Condition& which) : condition(which) {}

    const Condition& condition;
    std::map<std::uint32_t, ConditionHistory> of_series;  // by Series::index
    std::optional<ConditionHistory> of_number;
  };
  // An observation of this rank that fulfills a condition.
  struct Cause {
    std::string text;
    std::string layer;
    std::set<std::string> others = {};  // layers for which the same condition also held
  };

  bool exhausted() const { return firings_.load() >= options_.max_firings; }
  bool samples(TensorName tensor) const;
  bool looks_at(TensorName tensor) const;
  bool is_about(const Condition& condition, const Series& series) const;
  const std::vector<std::size_t>& get_watches(const Series& series);
  void look_at(const Row& row);
  void look_at(const EndedIteration& ended, const NamedNumber& number);
  void note(std::size_t watch, std::string text, std::string layer);
  std::string cause_in_words(std::int64_t iteration) const;
  std::string act(std::int64_t iteration);
  std::string start_sections(std::int64_t iteration);
  std::string write_operands(std::int64_t iteration);
  void hear_of_writing(bool wait);

  const config::FeatureEntry& entry_;
  const config::Section& section_;
  FeatureServices& services_;
  const TriggerOptions& options_;  // the options of the entry
  const config::Schedule& schedule_;
  std::array<std::optional<StatisticsList>, kAllTensors.size()> requests_;
  std::atomic<bool> warned_{false};

  std::optional<OperandSamples> operands_;

  // Members that only step() uses.
  std::future<std::string> writing_;  // an error, or ""
  std::vector<Watch> watches_;
  std::vector<std::optional<std::vector<std::size_t>>> watches_of_;  // by Series::index
  std::optional<std::size_t> holds_;  // the first condition that holds
  std::optional<Cause> cause_;
  std::optional<std::int64_t> looked_;         // the last iteration for which it decided
  std::optional<std::int64_t> looked_before_;  // the iteration before that
  std::int64_t quiet_until_ = 0;
  std::atomic<std::int64_t> firings_{0};  // the same on all ranks
};

const config::Section& get_section(const config::Config& config, const std::string& name) {
  return *std::ranges::find(config.sections(), name, &config::Section::name);
}

}  // namespace

Trigger::Trigger(const config::FeatureEntry& entry, FeatureServices& services)
    : entry_(entry),
      section_(get_section(services.config(), entry.section)),
      services_(services),
      options_(entry.selections.front().options_as<TriggerOptions>()),
      schedule_(entry.selections.front().schedule),
      watches_(options_.when.begin(), options_.when.end()) {
  std::array<std::vector<StatisticName>, kAllTensors.size()> statistics;
  for (const Condition& condition : options_.when) {
    for (const TensorName tensor : get_tensors(condition)) {
      statistics[static_cast<std::size_t>(tensor)].push_back(*condition.statistic);
    }
  }
  for (std::size_t i = 0; i < statistics.size(); ++i) {
    if (!statistics[i].empty())
      requests_[i].emplace(std::move(statistics[i]), /*for_loggers=*/false);
  }
  if (options_.operands) {
    operands_.emplace(*options_.operands, *options_.write_last,
                      static_cast<std::size_t>(options_.most_mebibytes) << 20);
  }
}

// ---- requesting statistics

RoutingCalls Trigger::routing_calls() const {
  RoutingCalls calls = RoutingCalls::none();
  calls.inspect = operands_ ||
                  std::ranges::any_of(requests_, [](const auto& each) { return each.has_value(); });
  return calls;
}

bool Trigger::reads_statistics(TensorName tensor, std::int64_t iteration) const {
  return requests_[static_cast<std::size_t>(tensor)].has_value() && decides(iteration);
}

bool Trigger::samples(TensorName tensor) const { return operands_ && is_gemm_input(tensor); }

bool Trigger::looks_at(TensorName tensor) const {
  return requests_[static_cast<std::size_t>(tensor)].has_value() || samples(tensor);
}

RoutingAnswer Trigger::inspect_tensor_enabled(const FeatureCall& at, TensorName tensor) {
  if (!looks_at(tensor) || exhausted()) {
    return RoutingAnswer::never();
  }
  return {schedule_.due(at.iteration), schedule_.next_due_after(at.iteration)};
}

void Trigger::observe_tensor(const FeatureCall& at, const ObservedTensor& call,
                             TensorReading& reading) {
  // A weight that is stored in low precision does not have high-precision values.
  if (samples(call.tensor_name) && call.tensor.defined() && !exhausted()) {
    operands_->add(at.layer_name, call.tensor_name, at.iteration, call.tensor);
  }
  const auto& request = requests_[static_cast<std::size_t>(call.tensor_name)];
  if (!request) return;
  const auto left_out = reading.want(*request);
  if (!left_out) return;
  const bool first = !warned_.exchange(true);
  services_.log_message(fmt::format("{}: of {} it does not see {}{}", entry_.description->name,
                                    telens::get_name(call.tensor_name), *left_out,
                                    first ? "; the log names all such tensors" : ""),
                        at.layer_name, first ? debug::LogLevel::warning : debug::LogLevel::info);
}

// ---- deciding

bool Trigger::decides(std::int64_t iteration) const {
  return !exhausted() && schedule_.due(iteration);
}

std::int64_t Trigger::decide(const EndedIteration& ended) {
  holds_.reset();
  cause_.reset();
  looked_before_ = std::exchange(looked_, ended.iteration);
  for (const Row& row : ended.rows) look_at(row);
  for (const NamedNumber& number : ended.numbers) look_at(ended, number);
  if (!holds_ || ended.iteration < quiet_until_) return 0;
  return static_cast<std::int64_t>(*holds_) + 1;
}

bool Trigger::is_about(const Condition& condition, const Series& series) const {
  if (!section_.layers.selects(series.layer)) return false;
  if (!condition.statistic) return condition.name == series.statistic;
  const std::optional<TensorName> tensor = tensor_from_name(series.tensor);
  if (!tensor || format_statistic_name(*condition.statistic, *tensor) != series.statistic) {
    return false;
  }
  return !condition.tensor || condition.tensor == tensor;
}

const std::vector<std::size_t>& Trigger::get_watches(const Series& series) {
  if (series.index >= watches_of_.size()) watches_of_.resize(series.index + 1);
  std::optional<std::vector<std::size_t>>& known = watches_of_[series.index];
  if (!known) {
    known.emplace();
    for (std::size_t i = 0; i < watches_.size(); ++i) {
      if (is_about(watches_[i].condition, series)) known->push_back(i);
    }
  }
  return *known;
}

void Trigger::look_at(const Row& row) {
  for (const std::size_t i : get_watches(*row.series)) {
    auto& history =
        watches_[i].of_series.try_emplace(row.series->index, watches_[i].condition).first->second;
    const std::optional<std::string> found = history.add(row.value);
    if (!found) continue;
    note(i,
         fmt::format("{} of {} of layer {} was {} in iteration {}", row.series->statistic,
                     row.series->tensor, row.series->layer, *found, row.iteration),
         row.series->layer);
  }
}

void Trigger::look_at(const EndedIteration& ended, const NamedNumber& number) {
  for (std::size_t i = 0; i < watches_.size(); ++i) {
    Watch& watch = watches_[i];
    if (watch.condition.statistic || watch.condition.name != number.name) continue;
    if (!watch.of_number) watch.of_number.emplace(watch.condition);
    const std::optional<std::string> found = watch.of_number->add(number.value);
    if (!found) continue;
    note(i, fmt::format("{} was {} in iteration {}", number.name, *found, ended.iteration), "");
  }
}

// The first observation gives the reason. Later ones are usually its consequences: rows come in the
// order in which forward and backward computed their tensors.
void Trigger::note(std::size_t watch, std::string text, std::string layer) {
  if (holds_) {
    if (*holds_ == watch && layer != cause_->layer) cause_->others.insert(std::move(layer));
    return;
  }
  holds_ = watch;
  cause_ = {std::move(text), std::move(layer)};
}

// The cause may have begun anywhere since the last look. The first layer is then only the first one
// that it has reached.
std::string Trigger::cause_in_words(std::int64_t iteration) const {
  std::string text = cause_->text;
  if (cause_->layer.empty()) return text;
  if (!cause_->others.empty()) {
    text += fmt::format(", and the condition also held in {} later layers", cause_->others.size());
  }
  const bool looked_at_all = schedule_.freq() == 1 || looked_before_ == iteration - 1;
  if (!looked_at_all) {
    text += fmt::format("; {} none of them was checked, so it may have begun elsewhere",
                        looked_before_ ? fmt::format("since iteration {}", *looked_before_)
                                       : std::string("before"));
  }
  return text;
}

// ---- firing

void Trigger::follow(std::int64_t iteration, std::span<const std::int64_t> wanted) {
  const auto first = std::ranges::find_if(wanted, [](std::int64_t word) { return word > 0; });
  if (first == wanted.end() || exhausted() || iteration < quiet_until_) return;
  ++firings_;
  quiet_until_ = iteration + 1 + options_.cooldown;
  const std::string& condition = options_.when[static_cast<std::size_t>(*first - 1)].text;
  const bool own = cause_ && static_cast<std::int64_t>(*holds_) + 1 == *first;
  const std::string cause =
      own ? cause_in_words(iteration) : fmt::format("it held on rank {}", first - wanted.begin());
  const std::string text = fmt::format("Trigger of section '{}' fired, {}: {}{}", entry_.section,
                                       condition, cause, act(iteration));
  // The stop reports the same text, once: in step()'s exception, the log and an event "stopped".
  if (options_.stop) return services_.stop_run(text);
  services_.announce("trigger", text, own ? cause_->layer : "");
}

// Returns a description of the actions.
std::string Trigger::act(std::int64_t iteration) {
  std::string done;
  if (options_.start) done += start_sections(iteration);
  if (options_.write_last) {
    const auto written = services_.sections().write_kept(entry_.section, exhausted());
    if (written.rows > 0 || !operands_) {
      done += fmt::format("; wrote {} kept records{}", written.rows,
                          written.incomplete ? " (more than fit into memory came in the last "
                                               "iterations: the earliest are missing)"
                                             : "");
    }
  }
  if (operands_) done += write_operands(iteration);
  if (options_.stop) done += "; the run is stopped";
  return done;
}

std::string Trigger::start_sections(std::int64_t iteration) {
  const std::vector<std::string> started =
      services_.sections().start(entry_.section, *options_.start);
  if (started.empty()) {
    return fmt::format("; started nothing: no section with '{}: {}' is enabled", config::kStartedBy,
                       entry_.section);
  }
  return fmt::format("; started {} for {} iterations from {} on", fmt::join(started, ", "),
                     *options_.start, iteration + 1);
}

// The file is written in parallel to the training; a run that is stopped waits for it.
std::string Trigger::write_operands(std::int64_t iteration) {
  hear_of_writing(/*wait=*/true);
  const debug::InitializeOptions& session = services_.options();
  const std::string folder = record::dump_folder(session.log_dir, session.rank, iteration);
  const std::string name = record::dump_name(entry_.section, "operands");
  OperandSamples::Kept samples = operands_->take();
  const std::string left_out =
      samples.left_out == 0
          ? ""
          : fmt::format(" ({} samples are missing, {} MiB were not enough for them)",
                        samples.left_out, options_.most_mebibytes);
  const auto write = [kept = std::move(samples), folder, name,
                      rank = session.rank]() -> std::string {
    try {
      write_operand_samples(kept, folder, name, rank);
      return "";
    } catch (const std::exception& error) {
      return error.what();
    }
  };
  writing_ = std::async(std::launch::async, write);
  if (options_.stop) hear_of_writing(/*wait=*/true);
  return fmt::format("; the sampled operands go to {}/{}.h5{}", folder, name, left_out);
}

void Trigger::hear_of_writing(bool wait) {
  using std::chrono::seconds;
  if (!writing_.valid()) return;
  if (!wait && writing_.wait_for(seconds(0)) != std::future_status::ready) return;
  const std::string error = writing_.get();
  if (error.empty()) return;
  services_.log_message(fmt::format("Trigger of section '{}': the sampled operands are lost: {}",
                                    entry_.section, error),
                        {}, debug::LogLevel::warning);
}

void Trigger::step(std::int64_t iteration) {
  if (!operands_) return;
  operands_->end_iteration(iteration);
  hear_of_writing(/*wait=*/false);
}

void Trigger::end() {
  hear_of_writing(/*wait=*/true);
  if (operands_) operands_->take();
}

FeatureRegistration trigger(config::StatisticDescriptionsPtr defined) {
  return {trigger_description(std::move(defined)),
          [](const config::FeatureEntry& entry, FeatureServices& services) {
            return std::make_unique<Trigger>(entry, services);
          }};
}

}  // namespace telens::features
