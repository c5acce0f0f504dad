#include "inspector_cli/terminal/terminal.h"

#include <fmt/format.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <array>
#include <csignal>
#include <cstdio>
#include <cstdlib>

#include "core/base/text.h"

namespace telens::cli {
namespace {

constexpr int kWidthWithoutTerminal = 100;
constexpr auto kProgressDelay = std::chrono::milliseconds(500);

bool environment_allows_colors() {
  const char* no_color = std::getenv("NO_COLOR");
  const char* term = std::getenv("TERM");
  return (no_color == nullptr || *no_color == '\0') &&
         (term == nullptr || std::string_view(term) != "dumb");
}

std::string_view get_escape(Color color) {
  switch (color) {
    case Color::bold:
      return "\x1b[1m";
    case Color::dim:
      return "\x1b[2m";
    case Color::red:
      return "\x1b[31;1m";
    case Color::yellow:
      return "\x1b[33m";
    case Color::green:
      return "\x1b[32m";
  }
  return "";
}

constexpr std::array kEndingSignals{SIGINT, SIGTERM, SIGHUP};

volatile std::sig_atomic_t recorded_signal = 0;
std::array<struct sigaction, kEndingSignals.size()> actions_before;

void note_signal(int signal) { recorded_signal = signal; }

}  // namespace

bool stdout_is_terminal() {
  static const bool answer = ::isatty(STDOUT_FILENO) == 1;
  return answer;
}

bool output_is_terminal() {
  static const bool answer = stdout_is_terminal() && environment_allows_colors();
  return answer;
}

int terminal_width() {
  winsize size{};
  if (::ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0) return size.ws_col;
  return kWidthWithoutTerminal;
}

std::string colored(std::string_view text, Color color) {
  if (!output_is_terminal()) return printable(text);
  return fmt::format("{}{}\x1b[0m", get_escape(color), printable(text));
}

void note(std::string_view text) { fmt::print(stderr, "telens: {}\n", printable(text)); }

void Progress::operator()(std::uint64_t done) {
  static const bool visible = ::isatty(STDERR_FILENO) == 1;
  if (!visible || total_ == 0) return;
  if (!shown_ && std::chrono::steady_clock::now() - start_ < kProgressDelay) return;
  shown_ = true;
  fmt::print(stderr, "\rreading {:3} %", 100 * done / total_);
  std::fflush(stderr);
}

Progress::~Progress() {
  if (shown_) fmt::print(stderr, "\r\x1b[K");
}

InterruptWatch::InterruptWatch() {
  recorded_signal = 0;
  struct sigaction action {};
  action.sa_handler = note_signal;
  sigemptyset(&action.sa_mask);
  for (std::size_t i = 0; i < kEndingSignals.size(); ++i) {
    ::sigaction(kEndingSignals[i], &action, &actions_before[i]);
    if (actions_before[i].sa_handler == SIG_IGN) {
      ::sigaction(kEndingSignals[i], &actions_before[i], nullptr);
    }
  }
}

InterruptWatch::~InterruptWatch() {
  for (std::size_t i = 0; i < kEndingSignals.size(); ++i) {
    ::sigaction(kEndingSignals[i], &actions_before[i], nullptr);
  }
}

int interrupting_signal() { return static_cast<int>(recorded_signal); }

void throw_if_interrupted() {
  if (recorded_signal != 0) throw Interrupted{interrupting_signal()};
}

}  // namespace telens::cli
