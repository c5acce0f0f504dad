#include "progress.h"

#include <fmt/format.h>
#include <unistd.h>

#include <cstdio>

namespace gpt {
namespace {

constexpr std::int64_t kBarWidth = 40;
constexpr std::int64_t kStepsPerLine = 20;

}  // namespace

Progress::Progress(std::int64_t first_step, std::int64_t steps)
    : first_step_(first_step),
      steps_(steps),
      terminal_(::isatty(STDOUT_FILENO) == 1),
      begin_(std::chrono::steady_clock::now()) {}

Progress::~Progress() {
  if (terminal_) fmt::print("\n");
}

void Progress::show(std::int64_t step, double loss) {
  const std::chrono::duration<double> elapsed = std::chrono::steady_clock::now() - begin_;
  const double speed = static_cast<double>(step + 1 - first_step_) / elapsed.count();
  if (terminal_) {
    draw_bar(step, loss, speed);
  } else if (step % kStepsPerLine == 0 || step + 1 == steps_) {
    fmt::print("step {:5}  loss {:.4f}  {:.1f} steps/s\n", step, loss, speed);
  }
  std::fflush(stdout);
}

void Progress::draw_bar(std::int64_t step, double loss, double steps_per_second) const {
  const std::int64_t full = kBarWidth * (step + 1) / steps_;
  fmt::print("\r[{:#<{}}{:.<{}}] {}/{}  loss {:.4f}  {:.1f} steps/s ", "", full, "",
             kBarWidth - full, step + 1, steps_, loss, steps_per_second);
}

}  // namespace gpt
