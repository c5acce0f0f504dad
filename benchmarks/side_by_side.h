// Contenders that are timed side by side: in turn, round after round, so that what else the machine
// does strikes all of them alike. Results are one JSON object a row on stdout; benchmarks/run.py
// reads them.
#pragma once

#include <chrono>
#include <functional>
#include <string>
#include <vector>

namespace telens::benchmark {

struct Contender {
  std::string name;
  std::function<void()> run;  // the timed work
  // Around each round and not timed; `prepare` ends with a warm-up of `run`.
  std::function<void()> prepare = {};
  std::function<void()> finish = {};
};

struct Plan {
  int rounds = 20;
  int runs = 1;  // calls of `run` within a round, for work that is too short to be timed once
};

double seconds_since(std::chrono::steady_clock::time_point start);

// Seconds of one run, by round.
std::vector<std::vector<double>> time_side_by_side(const std::vector<Contender>& contenders,
                                                   const Plan& plan);

// One measured quantity: the samples of every contender.
void print_samples(const std::string& row, const std::vector<std::string>& names,
                   const std::vector<std::vector<double>>& samples);

void compare(const std::string& row, const std::vector<Contender>& contenders, const Plan& plan);

}  // namespace telens::benchmark
