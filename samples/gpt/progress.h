// Progress of a training for the user: a bar on a terminal, lines on a pipe.
#pragma once

#include <chrono>
#include <cstdint>

namespace gpt {

class Progress {
 public:
  Progress(std::int64_t first_step, std::int64_t steps);
  ~Progress();
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  void show(std::int64_t step, double loss);

 private:
  void draw_bar(std::int64_t step, double loss, double steps_per_second) const;

  std::int64_t first_step_;
  std::int64_t steps_;
  bool terminal_;
  std::chrono::steady_clock::time_point begin_;
};

}  // namespace gpt
