#include "inspector_cli/terminal/terminal.h"

#include <fmt/format.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>

#include "core/base/printable.h"

namespace telens::cli {
namespace {

constexpr int kWidthWithoutTerminal = 100;
constexpr auto kPatience = std::chrono::milliseconds(500);

bool environment_allows_colours() {
  const char* no_colour = std::getenv("NO_COLOR");
  const char* term = std::getenv("TERM");
  return (no_colour == nullptr || *no_colour == '\0') &&
         (term == nullptr || std::string_view(term) != "dumb");
}

std::string_view get_escape(Colour colour) {
  switch (colour) {
    case Colour::bold:
      return "\x1b[1m";
    case Colour::dim:
      return "\x1b[2m";
    case Colour::red:
      return "\x1b[31;1m";
    case Colour::yellow:
      return "\x1b[33m";
    case Colour::green:
      return "\x1b[32m";
  }
  return "";
}

}  // namespace

bool stdout_is_terminal() {
  static const bool answer = ::isatty(STDOUT_FILENO) == 1;
  return answer;
}

bool output_is_terminal() {
  static const bool answer = stdout_is_terminal() && environment_allows_colours();
  return answer;
}

int terminal_width() {
  winsize size{};
  if (::ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0) return size.ws_col;
  return kWidthWithoutTerminal;
}

std::string coloured(std::string_view text, Colour colour) {
  if (!output_is_terminal()) return printable(text);
  return fmt::format("{}{}\x1b[0m", get_escape(colour), printable(text));
}

void note(std::string_view text) { fmt::print(stderr, "telens: {}\n", printable(text)); }

void Progress::operator()(std::uint64_t done) {
  static const bool visible = ::isatty(STDERR_FILENO) == 1;
  if (!visible || total_ == 0) return;
  if (!shown_ && std::chrono::steady_clock::now() - start_ < kPatience) return;
  shown_ = true;
  fmt::print(stderr, "\rreading {:3} %", 100 * done / total_);
  std::fflush(stderr);
}

Progress::~Progress() {
  if (shown_) fmt::print(stderr, "\r\x1b[K");
}

}  // namespace telens::cli
