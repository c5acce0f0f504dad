// Functions and values that the stable ABI does not expose. The Python module provides them.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace telens {

// Sets torch_version(). Call it once, before a session.
void set_torch_version(std::string version);

// Read and restore the state of torch's default random number generator for the CPU.
struct RandomStateFunctions {
  std::function<std::vector<std::uint8_t>()> get;
  std::function<void(const std::vector<std::uint8_t>&)> set;
};

// Before this call, RandomState neither detects nor restores changes.
void set_random_state_functions(RandomStateFunctions functions);

}  // namespace telens
