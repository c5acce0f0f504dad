// Diagnosis: runs the rules of telens diagnose repeatedly during a run.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <exception>
#include <filesystem>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "analysis/live_look.h"
#include "core/base/error.h"
#include "features/builtin_features.h"
#include "features/online_diagnosis/look_thread.h"
#include "features/online_diagnosis/online_diagnosis_options.h"
#include "hooks/config/config.h"
#include "hooks/decisions.h"
#include "hooks/feature_registry.h"
#include "hooks/finding.h"
#include "hooks/observer.h"
#include "hooks/rank_group.h"

namespace telens::features {
namespace {

// Findings of the look thread. The thread adds them, and the session's threads read them.
// Thread-safe.
class FindingBoard {
 public:
  // Runs a look, stores new findings and calls the listeners. Never throws. Does nothing after a
  // run could not be read.
  void look(analysis::LiveLook& run, std::int64_t last);

  // Findings that ended before this iteration are not reported.
  void tell_since(std::int64_t iteration);
  // Marks the next look as the last.
  void expect_the_end();

  void listen(debug::FindingListener listener);
  std::vector<debug::Finding> findings() const;

  // Returns true if the weights must not be saved, because of an earlier finding with this action
  // or the result of the last look.
  bool vetoes() const;

  // Everything since the last call.
  struct News {
    std::vector<analysis::LiveFinding> found = {};
    std::vector<std::string> failed_listeners = {};  // why
    std::string failure = {};                        // why looks ended
    std::size_t findings = 0;                        // total
  };
  News take_news();
  // Returns the interruption of a listener (core/base/error.h), or nullptr if there is none.
  std::exception_ptr take_interruption();

 private:
  using Listener = std::shared_ptr<const debug::FindingListener>;
  void tell(const std::vector<analysis::LiveFinding>& found);
  void call(const Listener& listener, const debug::Finding& finding);

  mutable std::mutex mutex_;  // guards the members below; no callback runs under it
  std::vector<debug::Finding> findings_;
  std::vector<Listener> listeners_;
  News news_;
  std::exception_ptr interruption_;
  bool vetoes_for_good_ = false;
  bool vetoes_now_ = false;
  std::int64_t since_ = INT64_MIN;
  bool at_end_ = false;
  bool is_off_ = false;
};

class OnlineDiagnosis final : public Observer, public FindingSource, private Decider {
 public:
  OnlineDiagnosis(const config::FeatureEntry& entry, FeatureServices& services);

  RoutingCalls routing_calls() const override { return RoutingCalls::none(); }
  bool follows_schedules() const override { return true; }
  bool can_be_captured() const override { return true; }
  Decider* decider() override { return options_.may(analysis::Action::veto) ? this : nullptr; }
  void step(std::int64_t iteration) override;
  void end() override;

  // FindingSource
  void begin(std::shared_ptr<Sink> run_file) override;
  std::vector<debug::Finding> findings() const override { return board_->findings(); }
  void listen(debug::FindingListener listener) override { board_->listen(std::move(listener)); }
  void look_now(std::int64_t last, std::chrono::milliseconds wait) override;
  bool allows_checkpoints() const override;
  bool may_veto() const override { return options_.may(analysis::Action::veto); }
  std::exception_ptr take_interruption() override { return board_->take_interruption(); }

  // Time limit for the last look, in which the end of a session waits.
  static constexpr std::chrono::seconds kLongestEnd{5};

 private:
  // Decider
  bool decides(std::int64_t iteration) const override;
  bool looks_at_rows() const override { return false; }
  // Returns the strongest action that is currently required: 0, kVeto or kStop.
  std::int64_t decide(const EndedIteration& ended) override;
  void follow(std::int64_t iteration, std::span<const std::int64_t> wanted) override;

  // Returns false if ranks decide together about findings.
  bool is_alone() const;
  void tell_news(std::int64_t iteration);
  std::string in_words(const analysis::LiveFinding& found) const;

  const config::FeatureEntry& entry_;
  const config::Section& section_;
  FeatureServices& services_;
  const OnlineDiagnosisOptions& options_;  // the options of the entry
  const config::Schedule& schedule_;
  const std::shared_ptr<FindingBoard> board_ = std::make_shared<FindingBoard>();
  std::unique_ptr<LookThread> looks_;
  std::atomic<bool> all_ranks_veto_{false};

  // Used only by step() and end().
  std::optional<std::int64_t> stepped_;  // the last iteration in which the section ran
  std::vector<std::string> stops_;       // texts of findings that ask for a stop, until it comes
};

debug::Finding make_finding(const analysis::LiveFinding& found) {
  return {.cause = found.cause,
          .layer = found.layer,
          .first_iteration = found.first,
          .last_iteration = found.last,
          .confidence = found.confidence,
          .text = found.text,
          .json = found.json};
}

}  // namespace

void FindingBoard::look(analysis::LiveLook& run, std::int64_t last) {
  analysis::LiveLook::Request request{.last = last};
  {
    const std::lock_guard lock(mutex_);
    if (is_off_) return;
    request.since = since_;
    request.at_end = at_end_;
  }
  analysis::LiveFindings seen;
  try {
    seen = run.look(request);
  } catch (const std::exception& error) {
    const std::lock_guard lock(mutex_);
    is_off_ = true;
    news_.failure = error.what();
    return;
  }
  {
    const std::lock_guard lock(mutex_);
    vetoes_now_ = seen.vetoes;
    for (const analysis::LiveFinding& each : seen.found) {
      vetoes_for_good_ = vetoes_for_good_ || each.action >= analysis::Action::veto;
      findings_.push_back(make_finding(each));
      news_.found.push_back(each);
    }
  }
  tell(seen.found);
}

void FindingBoard::tell_since(std::int64_t iteration) {
  const std::lock_guard lock(mutex_);
  since_ = iteration;
}

void FindingBoard::expect_the_end() {
  const std::lock_guard lock(mutex_);
  at_end_ = true;
}

void FindingBoard::listen(debug::FindingListener listener) {
  const std::lock_guard lock(mutex_);
  listeners_.push_back(std::make_shared<const debug::FindingListener>(std::move(listener)));
}

std::vector<debug::Finding> FindingBoard::findings() const {
  const std::lock_guard lock(mutex_);
  return findings_;
}

bool FindingBoard::vetoes() const {
  const std::lock_guard lock(mutex_);
  return vetoes_for_good_ || vetoes_now_;
}

FindingBoard::News FindingBoard::take_news() {
  const std::lock_guard lock(mutex_);
  News news = std::exchange(news_, {});
  news.findings = findings_.size();
  return news;
}

std::exception_ptr FindingBoard::take_interruption() {
  const std::lock_guard lock(mutex_);
  return std::exchange(interruption_, nullptr);
}

void FindingBoard::tell(const std::vector<analysis::LiveFinding>& found) {
  for (const analysis::LiveFinding& each : found) {
    const std::vector<Listener> listeners = [this] {
      const std::lock_guard lock(mutex_);
      return listeners_;
    }();
    for (const Listener& listener : listeners) call(listener, make_finding(each));
  }
}

// An interruption is kept for the training's thread. A listener that fails is removed.
void FindingBoard::call(const Listener& listener, const debug::Finding& finding) {
  try {
    (*listener)(finding);
  } catch (const Interruption&) {
    const std::lock_guard lock(mutex_);
    interruption_ = std::current_exception();
  } catch (const std::exception&) {
    const std::string why = message_of_current_exception();
    const std::lock_guard lock(mutex_);
    std::erase(listeners_, listener);
    news_.failed_listeners.push_back(why);
  }
}

namespace {

using analysis::Action;

constexpr std::int64_t kVeto = 1;
constexpr std::int64_t kStop = 2;

// Rows of an iteration may be recorded one step later, for example rows from a GPU. In step(i),
// iteration i - 2 is the last that is completely in the run file.
constexpr std::int64_t kIterationsUnderWay = 2;

const config::Section& section_named(const config::Config& config, const std::string& name) {
  return *std::ranges::find(config.sections(), name, &config::Section::name);
}

}  // namespace

OnlineDiagnosis::OnlineDiagnosis(const config::FeatureEntry& entry, FeatureServices& services)
    : entry_(entry),
      section_(section_named(services.config(), entry.section)),
      services_(services),
      options_(entry.selections.front().options_as<OnlineDiagnosisOptions>()),
      schedule_(entry.selections.front().schedule) {}

// The thread shares ownership of everything it uses and copies the session's values.
void OnlineDiagnosis::begin(std::shared_ptr<Sink> run_file) {
  const std::filesystem::path file = run_file->path();
  // A recording that could not begin has a folder but no file.
  const std::string folder = (file.extension() == ".h5" ? file.parent_path() : file).string();
  auto run = std::make_shared<analysis::LiveLook>(analysis::LiveLookOptions{
      // Other ranks write their files at other times, and perhaps to other disks.
      .path = services_.options().world_size == 1 ? folder : file.string(),
      .run = folder,
      .get_action = [options =
                         options_](std::string_view cause) { return options.get_action(cause); },
      .selects =
          [layers = section_.layers](const std::string& layer) { return layers.selects(layer); }});
  const auto look = [board = board_, run, run_file](std::int64_t last) {
    run_file->flush();
    board->look(*run, last);
  };
  looks_ = std::make_unique<LookThread>(look, options_.share);
}

bool OnlineDiagnosis::is_alone() const { return !has_several_ranks(services_.options().world); }

void OnlineDiagnosis::step(std::int64_t iteration) {
  tell_news(iteration);
  if (!services_.sections().state(entry_.section).runs()) return;
  if (!stepped_) board_->tell_since(iteration);
  stepped_ = iteration;
  if (iteration >= kIterationsUnderWay && schedule_.due(iteration, thinning_factor())) {
    looks_->ask(iteration - kIterationsUnderWay);
  }
}

void OnlineDiagnosis::end() {
  if (!stepped_) return;
  board_->expect_the_end();
  const bool looked = looks_->ask_now(INT64_MAX, kLongestEnd);
  looks_->end(std::chrono::milliseconds(0));
  tell_news(*stepped_);
  if (looked) return;
  services_.log_message(fmt::format("Diagnosis of section '{}': the session ended without a last "
                                    "look at the run, which `telens diagnose` can do now",
                                    entry_.section),
                        {}, debug::LogLevel::warning);
}

void OnlineDiagnosis::look_now(std::int64_t last, std::chrono::milliseconds wait) {
  if (is_alone() && last >= 0) looks_->ask_now(last, wait);
}

bool OnlineDiagnosis::allows_checkpoints() const {
  return !(is_alone() ? board_->vetoes() : all_ranks_veto_.load());
}

// ---- reporting

std::string OnlineDiagnosis::in_words(const analysis::LiveFinding& found) const {
  return fmt::format("Diagnosis of section '{}' found {}", entry_.section, found.text);
}

void OnlineDiagnosis::tell_news(std::int64_t iteration) {
  const FindingBoard::News news = board_->take_news();
  for (const analysis::LiveFinding& each : news.found) {
    const std::string_view consequence =
        each.action == Action::veto ? "; checkpoints are vetoed from here on" : "";
    services_.announce("finding", in_words(each) + std::string(consequence), each.layer);
    if (each.action == Action::stop) stops_.push_back(in_words(each));
  }
  for (const std::string& why : news.failed_listeners) {
    services_.announce("listener_off",
                       fmt::format("a function passed to debug.on_finding failed: {}; it is not "
                                   "called again in this session, and the training continues",
                                   why),
                       {});
  }
  if (!news.failure.empty()) {
    services_.announce("diagnosis_off",
                       fmt::format("Diagnosis of section '{}': {}; it stops for the rest of this "
                                   "session, and the training continues",
                                   entry_.section, news.failure),
                       {});
  }
  if (news.found.empty()) return;
  services_.record_row(
      record::Scalar{.iteration = iteration,
                     .name = services_.names().id(record::Dictionary::word, "findings"),
                     .value = static_cast<double>(news.findings)});
}

// ---- deciding, for all ranks

bool OnlineDiagnosis::decides(std::int64_t iteration) const {
  return is_alone() || schedule_.due(iteration);
}

std::int64_t OnlineDiagnosis::decide(const EndedIteration&) {
  if (!stops_.empty()) return kStop;
  return board_->vetoes() ? kVeto : 0;
}

void OnlineDiagnosis::follow(std::int64_t, std::span<const std::int64_t> wanted) {
  const auto strongest = std::ranges::max_element(wanted);
  const std::int64_t action = strongest == wanted.end() ? 0 : *strongest;
  all_ranks_veto_.store(action >= kVeto);
  if (action < kStop) return;
  std::vector<std::string> texts = std::exchange(stops_, {});
  if (texts.empty()) {
    texts.push_back(fmt::format("Diagnosis of section '{}': a finding of rank {} stops the run",
                                entry_.section, strongest - wanted.begin()));
  }
  services_.stop_run(fmt::format("{}; the run is stopped", fmt::join(texts, "\n")));
}

FeatureRegistration online_diagnosis() {
  return {online_diagnosis_description(),
          [](const config::FeatureEntry& entry, FeatureServices& services) {
            return std::make_unique<OnlineDiagnosis>(entry, services);
          }};
}

}  // namespace telens::features
