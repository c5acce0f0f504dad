// The command line that all benchmark programs share.
#pragma once

#include <memory>
#include <string>

#include "core/kernels/cpu/simd_target.h"

namespace telens::benchmark {

struct Arguments {
  int rounds = 20;
  int threads = 0;           // 0: torch's default
  std::string simd;          // "": the best target of the processor
  std::string folder = ".";  // for files
};

// Exits where the command line is wrong.
Arguments parse_arguments(int argc, char** argv, const char* description);

// Our kernels use the target that was asked for while this lives.
std::unique_ptr<kernels::ScopedSimdTarget> use_simd(const Arguments& arguments);

}  // namespace telens::benchmark
