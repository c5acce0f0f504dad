// The stable ABI does not expose random number generators: the Python module passes functions that
// read and restore the state of torch's default generator for the CPU.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

namespace telens {

struct RandomStateFunctions {
  std::function<std::vector<std::uint8_t>()> get;
  std::function<void(const std::vector<std::uint8_t>&)> set;
};

// Before this call, RandomState neither detects nor restores changes.
void set_random_state_functions(RandomStateFunctions functions);

}  // namespace telens
