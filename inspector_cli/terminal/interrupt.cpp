#include "inspector_cli/terminal/interrupt.h"

#include <array>
#include <csignal>

namespace telens::cli {
namespace {

constexpr std::array kEndingSignals{SIGINT, SIGTERM, SIGHUP};

volatile std::sig_atomic_t wanted_end = 0;
std::array<struct sigaction, kEndingSignals.size()> actions_before;

void note_signal(int signal) { wanted_end = signal; }

}  // namespace

InterruptWatch::InterruptWatch() {
  wanted_end = 0;
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

int interrupting_signal() { return static_cast<int>(wanted_end); }

void throw_if_interrupted() {
  if (wanted_end != 0) throw Interrupted{interrupting_signal()};
}

}  // namespace telens::cli
