#include "features/online_diagnosis/online_diagnosis.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <filesystem>
#include <utility>

#include "hooks/config/config.h"
#include "hooks/rank_group.h"

namespace telens::features {
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
