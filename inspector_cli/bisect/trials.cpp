#include "inspector_cli/bisect/trials.h"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <utility>
#include <vector>

#include "analysis/series.h"
#include "core/base/error.h"
#include "core/base/json.h"
#include "core/base/text.h"
#include "hooks/config/config.h"
#include "inspector_cli/bisect/choice.h"
#include "inspector_cli/bisect/process.h"
#include "inspector_cli/report/open_run.h"
#include "inspector_cli/terminal/terminal.h"
#include "inspector_cli/terminal/text.h"

namespace telens::cli {
namespace {

using analysis::read_losses;

using diagnosis::Point;

constexpr std::size_t kShare = 10;  // compares the last tenth of the iterations

const Point* first_bad(const std::vector<Point>& losses) {
  const auto bad =
      std::ranges::find_if(losses, [](const Point& each) { return !std::isfinite(each.value); });
  return bad == losses.end() ? nullptr : &*bad;
}

}  // namespace

LossReference::LossReference(std::string path, double tolerance)
    : path_(std::move(path)), tolerance_(tolerance), losses_(read_losses(open_run(path_))) {
  if (losses_.empty()) {
    raise<UsageError>(
        "--reference {}: the run contains no losses; record it again with debug.step(loss), or "
        "use --check",
        path_);
  }
  if (const auto* bad = first_bad(losses_)) {
    raise<UsageError>(
        "--reference {}: the loss in iteration {} is {}; expected a run with finite losses", path_,
        bad->iteration, bad->value);
  }
}

LossVerdict LossReference::judge(const std::string& log_dir) const {
  const std::vector<Point> losses = read_losses(open_run(log_dir));
  if (const auto* bad = first_bad(losses)) {
    return {false, fmt::format("loss {} in iteration {}", bad->value, bad->iteration)};
  }
  std::vector<std::pair<double, double>> both;
  for (const Point& own : losses) {
    const auto expected = std::ranges::lower_bound(losses_, own.iteration, {}, &Point::iteration);
    if (expected != losses_.end() && expected->iteration == own.iteration) {
      both.emplace_back(own.value, expected->value);
    }
  }
  if (both.empty()) {
    raise<UsageError>(
        "the run in {} and {} do not share an iteration with a loss; call debug.step(loss) in "
        "the same iterations as in the reference",
        log_dir, path_);
  }
  const std::size_t compared = std::max<std::size_t>(1, both.size() / kShare);
  double own = 0, expected = 0;
  for (std::size_t i = both.size() - compared; i < both.size(); ++i) {
    own += both[i].first / static_cast<double>(compared);
    expected += both[i].second / static_cast<double>(compared);
  }
  return {own - expected <= tolerance_ * std::abs(expected),
          fmt::format("loss {}, reference {}", number_text(own, 5), number_text(expected, 5))};
}

namespace {

namespace fs = std::filesystem;

constexpr int kStateSchema = 1;

std::string replaced(std::string text, std::string_view from, const std::string& to) {
  for (std::size_t at = text.find(from); at != std::string::npos;
       at = text.find(from, at + to.size())) {
    text.replace(at, from.size(), to);
  }
  return text;
}

// Returns the key that identifies a search.
Json make_question(const TrialOptions& options) {
  Json command = Json::array();
  for (const std::string& each : options.command) command.push_back(json_text(each));
  return {{"command", command},
          {"check", json_text(options.check)},
          {"reference", json_text(options.reference_name)},
          {"config", json_text(options.config)}};
}

Json state_json(const Trial& trial) {
  return {{"number", trial.number},
          {"passed", trial.passed},
          {"reason", json_text(trial.reason)},
          {"seconds", json_number(trial.seconds)},
          {"config", json_text(trial.config)}};
}

}  // namespace

Trials::Trials(TrialOptions options, Show show)
    : options_(std::move(options)), show_(std::move(show)) {
  options_.folder = fs::absolute(options_.folder).lexically_normal().string();
  read_state();
  loaded_ = trials_.size();
}

std::string Trials::state_path() const {
  return (fs::path(options_.folder) / "state.json").string();
}

std::string Trials::get_folder(int number) const {
  return (fs::path(options_.folder) / fmt::format("run-{:03}", number)).string();
}

std::string Trials::get_log_dir(const Trial& trial) const {
  return (fs::path(get_folder(trial.number)) / "logs").string();
}

std::string Trials::get_output(const Trial& trial) const {
  return (fs::path(get_folder(trial.number)) / "output.txt").string();
}

std::string Trials::get_config(const Choice& choice) const {
  return options_.config + std::string(trials_.empty() ? kCandidatesSection : "") +
         get_sections(choice);
}

void Trials::read_state() {
  std::ifstream file(state_path(), std::ios::binary);
  if (!file) return;
  const std::string text(std::istreambuf_iterator<char>(file), {});
  const auto refuse = [this](std::string_view what) {
    raise<UsageError>(
        "{} {}; choose another folder with --dir, or remove this one to start a new search",
        state_path(), what);
  };
  try {
    const Json state = Json::parse(text);
    if (state.at("schema_version") != kStateSchema) refuse("was written by another version");
    if (state.at("question") != make_question(options_)) {
      refuse("belongs to a search with another command, check, reference or config");
    }
    for (const Json& each : state.at("runs")) {
      trials_.push_back({.number = each.at("number").get<int>(),
                         .config = each.at("config").get<std::string>(),
                         .passed = each.at("passed").get<bool>(),
                         .reason = each.at("reason").get<std::string>(),
                         .seconds = each.at("seconds").get<double>()});
    }
  } catch (const Json::exception&) {
    refuse("is not the state of a search");
  }
}

void Trials::write_state() const {
  Json state = {{"schema_version", kStateSchema},
                {"question", make_question(options_)},
                {"runs", Json::array()}};
  for (const Trial& each : trials_) state["runs"].push_back(state_json(each));
  write_file(state_path(), state.dump(1) + "\n");
}

void Trials::forget() const {
  std::error_code ignored;  // a folder without write permission was reported before
  fs::remove(state_path(), ignored);
}

const Trial& Trials::run(const Choice& choice) {
  // Only the first run changes nothing; its config has kCandidatesSection in addition.
  std::string config = get_config(choice);
  if (!trials_.empty() && choice.high.empty() && !choice.cast) return trials_.front();
  const auto known = std::ranges::find(trials_, config, &Trial::config);
  if (known != trials_.end()) return *known;
  Trial trial{.number = static_cast<int>(trials_.size()) + 1, .config = std::move(config)};
  show_(choice, trial, false);
  execute(trial);
  trials_.push_back(std::move(trial));
  write_state();
  show_(choice, trials_.back(), true);
  return trials_.back();
}

void Trials::execute(Trial& trial) const {
  const fs::path folder = get_folder(trial.number);
  std::error_code ignored;
  fs::remove_all(folder, ignored);  // an interrupted run may have left it
  const std::string config_path = (folder / "config.yaml").string();
  const std::string log_dir = get_log_dir(trial);
  write_file(config_path, trial.config);
  // PYTHONUNBUFFERED keeps output and errors in order, so that the error of a failed program is at
  // the end of its output file.
  ProcessOptions process{.environment = {{config::kConfigVariable, config_path},
                                         {config::kLogDirVariable, log_dir},
                                         {"PYTHONUNBUFFERED", "1"}},
                         .output = get_output(trial),
                         .timeout = options_.timeout};
  for (const std::string& each : options_.command) {
    process.command.push_back(
        replaced(replaced(each, "{config}", config_path), "{log_dir}", log_dir));
  }
  ProcessEnd end = run_process(process);
  trial.seconds = end.seconds;
  trial.passed = end.is_success();
  trial.reason = end.text();
  if (trial.passed && options_.reference) {
    const LossVerdict verdict = options_.reference->judge(log_dir);
    trial.passed = verdict.passed;
    trial.reason = verdict.text;
  }
  if (trial.passed && !options_.check.empty()) {
    process.command = {"/bin/sh", "-c",
                       replaced(replaced(options_.check, "{config}", shell_word(config_path)),
                                "{log_dir}", shell_word(log_dir))};
    end = run_process(process);
    trial.seconds += end.seconds;
    trial.passed = end.is_success();
    trial.reason = "check: " + end.text();
  }
}

}  // namespace telens::cli
