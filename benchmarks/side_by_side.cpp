#include "benchmarks/side_by_side.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cstdio>

namespace telens::benchmark {

double seconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

std::vector<std::vector<double>> time_side_by_side(const std::vector<Contender>& contenders,
                                                   const Plan& plan) {
  std::vector<std::vector<double>> samples(contenders.size());
  for (const Contender& each : contenders) {
    if (!each.prepare) each.run();
  }
  for (int round = 0; round < plan.rounds; ++round) {
    for (std::size_t i = 0; i < contenders.size(); ++i) {
      const Contender& each = contenders[i];
      if (each.prepare) each.prepare();
      const auto start = std::chrono::steady_clock::now();
      for (int run = 0; run < plan.runs; ++run) each.run();
      samples[i].push_back(seconds_since(start) / plan.runs);
      if (each.finish) each.finish();
    }
  }
  return samples;
}

void print_samples(const std::string& row, const std::vector<std::string>& names,
                   const std::vector<std::vector<double>>& samples) {
  std::vector<std::string> members;
  for (std::size_t i = 0; i < names.size(); ++i) {
    members.push_back(fmt::format("\"{}\": [{}]", names[i], fmt::join(samples[i], ", ")));
  }
  fmt::print("{{\"row\": \"{}\", \"samples\": {{{}}}}}\n", row, fmt::join(members, ", "));
  std::fflush(stdout);
}

void compare(const std::string& row, const std::vector<Contender>& contenders, const Plan& plan) {
  std::vector<std::string> names;
  for (const Contender& each : contenders) names.push_back(each.name);
  print_samples(row, names, time_side_by_side(contenders, plan));
}

}  // namespace telens::benchmark
