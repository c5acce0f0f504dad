// Signals that ask the command to end, for subcommands that run long.
#pragma once

namespace telens::cli {

// The command was told to end: by SIGINT, SIGTERM or SIGHUP. main.cpp makes an exit code of it.
struct Interrupted {
  int signal = 0;
};

// From its construction on, these signals are kept for throw_if_interrupted() and
// interrupting_signal() to see. One that the caller ignores, as nohup does, stays ignored.
class InterruptWatch {
 public:
  InterruptWatch();
  ~InterruptWatch();
  InterruptWatch(const InterruptWatch&) = delete;
  InterruptWatch& operator=(const InterruptWatch&) = delete;
};

int interrupting_signal();    // 0: none came
void throw_if_interrupted();  // throws Interrupted

}  // namespace telens::cli
