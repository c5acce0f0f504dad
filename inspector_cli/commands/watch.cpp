// telens watch: follows a growing run in the terminal.
#include <fmt/format.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <chrono>
#include <csignal>
#include <filesystem>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "analysis/followed_run.h"
#include "core/base/error.h"
#include "core/base/text.h"
#include "inspector_cli/commands/options.h"
#include "inspector_cli/commands/subcommands.h"
#include "inspector_cli/report/open_run.h"
#include "inspector_cli/report/run_view.h"
#include "inspector_cli/terminal/terminal.h"
#include "record/run_paths.h"

namespace telens::cli {
namespace {

using analysis::FollowedRun;

using Clock = std::chrono::steady_clock;

constexpr auto kPollInterval = std::chrono::milliseconds(50);
constexpr int kReadingShare = 10;  // reading takes at most a tenth of the time
constexpr std::size_t kRowsWithoutTerminal = 24;

struct WatchOptions {
  std::string run;
  double interval = 2;  // seconds
};

volatile std::sig_atomic_t resized = 0;
void note_resize(int) { resized = 1; }

// The terminal's alternate screen, so that the old content reappears at the end. Long lines are not
// wrapped.
class Screen {
 public:
  Screen() {
    std::signal(SIGWINCH, note_resize);
    write("\x1b[?1049h\x1b[?25l\x1b[?7l");
  }
  ~Screen() {
    try {
      write("\x1b[?7h\x1b[?25h\x1b[?1049l");
    } catch (...) {  // the terminal is gone
    }
    std::signal(SIGWINCH, SIG_DFL);
  }
  Screen(const Screen&) = delete;
  Screen& operator=(const Screen&) = delete;

  static void show(const std::vector<FrameLine>& lines) {
    std::string text = "\x1b[H";
    for (std::size_t i = 0; i < lines.size(); ++i) {
      const auto& [line, color] = lines[i];
      text += (i > 0 ? "\n" : "") + (color ? colored(line, *color) : line) + "\x1b[K";
    }
    write(text + "\x1b[J");
  }

 private:
  static void write(const std::string& text) {
    fmt::print("{}", text);
    flush_stdout();
  }
};

std::pair<std::size_t, std::size_t> size_of_terminal() {
  winsize size{};
  const bool known = ::ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_row > 0;
  return {static_cast<std::size_t>(terminal_width()), known ? size.ws_row : kRowsWithoutTerminal};
}

// Reads the run again if its files have changed.
class WatchedRun {
 public:
  explicit WatchedRun(const WatchOptions& options) : run_(choose_run(options.run)) {}

  // Returns the new view, or nullptr if nothing changed.
  const RunView* update() {
    if (!run_.has_news()) return nullptr;
    const Clock::time_point begin = Clock::now();
    // Skips damaged files; `telens info` reports them.
    view_ = make_view(record::RunReader(run_.path(), [](const std::string&) {}));
    cost_ = Clock::now() - begin;
    return &*view_;
  }
  const RunView& view() const { return *view_; }
  Clock::duration cost() const { return cost_; }

 private:
  FollowedRun run_;
  std::optional<RunView> view_;
  Clock::duration cost_{};
};

// Returns true if a run may still begin at the path: it is missing or a folder without runs.
bool is_not_started(const std::string& run) {
  std::error_code unknown;
  const std::filesystem::path path = std::filesystem::absolute(run, unknown);
  if (!std::filesystem::exists(path, unknown)) {
    return !unknown && std::filesystem::is_directory(path.parent_path(), unknown);
  }
  return std::filesystem::is_directory(path, unknown) && record::segments_in(run).empty() &&
         record::run_folders(run).empty();
}

// Returns false if the user stops the command.
bool wait_until(Clock::time_point next) {
  while (Clock::now() < next && resized == 0) {
    if (interrupting_signal() != 0) return false;
    std::this_thread::sleep_for(kPollInterval);
  }
  return interrupting_signal() == 0;
}

// Waits until there is a run. Returns false if the user stops the command.
bool wait_for_run(const WatchOptions& options) {
  if (!is_not_started(options.run)) return true;
  note(fmt::format("{}: no run yet; waiting for one to start (Ctrl-C stops)", options.run));
  const auto interval =
      std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(options.interval));
  while (is_not_started(options.run)) {
    if (!wait_until(Clock::now() + interval)) return false;
  }
  return true;
}

Clock::time_point next_look(const WatchedRun& watched, const WatchOptions& options) {
  const auto interval =
      std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(options.interval));
  return Clock::now() + std::max(interval, kReadingShare * watched.cost());
}

// Prints progress lines and each finding once.
class PlainText {
 public:
  void show(const RunView& view) {
    if (const std::string progress = progress_text(view); progress != progress_) {
      fmt::print("{}\n", progress);
      progress_ = progress;
    }
    for (const ViewedFinding& each : view.findings) {
      if (printed_.insert(each.head).second) fmt::print("{}: {}\n", each.head, each.summary);
    }
    flush_stdout();
  }

 private:
  std::string progress_;
  std::set<std::string> printed_;
};

void watch_on_screen(WatchedRun& watched, const WatchOptions& options) {
  const Screen screen;
  Clock::time_point next{};
  do {
    const bool is_time = Clock::now() >= next;
    const bool is_new = is_time && watched.update() != nullptr;
    if (is_new || std::exchange(resized, 0) != 0) {
      const auto [width, rows] = size_of_terminal();
      Screen::show(make_frame(watched.view(), options.run, width, rows));
    }
    if (is_time) next = next_look(watched, options);
  } while (!watched.view().ended && wait_until(next));
}

void watch_as_text(WatchedRun& watched, const WatchOptions& options) {
  PlainText text;
  do {
    if (const RunView* view = watched.update()) text.show(*view);
  } while (!watched.view().ended && wait_until(next_look(watched, options)));
}

void show_run(const WatchOptions& options) {
  WatchedRun watched(options);
  if (!stdout_is_terminal()) {
    watch_as_text(watched, options);
    fmt::print("{}\n", printable(watched.view().state.text));
  } else {
    watch_on_screen(watched, options);
    // Print the last frame on the normal screen, so that it remains visible.
    const auto [width, rows] = size_of_terminal();
    for (const auto& [line, color] : make_frame(watched.view(), options.run, width, rows - 1)) {
      fmt::print("{}\n", color ? colored(line, *color) : line);
    }
  }
}

void run_watch(const WatchOptions& options) {
  const InterruptWatch interrupts;
  if (wait_for_run(options)) show_run(options);
  // Ctrl-C is the normal end. Other signals are reported in the exit code.
  if (interrupting_signal() != SIGINT) throw_if_interrupted();
}

}  // namespace

void add_watch(CLI::App& app) {
  constexpr double kLongestInterval = 3600;
  auto options = std::make_shared<WatchOptions>();
  CLI::App* command = app.add_subcommand(
      "watch",
      "Follow a running job: findings, loss, worst tensors.\n\n"
      "Updates the screen as the run grows, until the run ends or Ctrl-C. If stdout is not a "
      "terminal, prints one line per new iteration and each finding once. Waits for a run that "
      "does not exist yet. `telens run` records a program, and `telens.watch(model)` a model.");
  add_run(*command, options->run);
  command->add_option("--interval", options->interval, "Seconds between updates (default: 2)")
      ->type_name("SECONDS")
      ->check(seconds_up_to(kLongestInterval));
  command->footer("Example:\n  telens watch logs");
  command->callback([options] { run_watch(*options); });
}

}  // namespace telens::cli
