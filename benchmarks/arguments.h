// The command line that all benchmark programs share.
#pragma once

#include <ATen/Parallel.h>

#include <CLI/CLI.hpp>
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
inline Arguments parse_arguments(int argc, char** argv, const char* description) {
  CLI::App app(description);
  Arguments arguments;
  app.add_option("--rounds", arguments.rounds, "rounds of each comparison");
  app.add_option("--threads", arguments.threads, "threads of every contender");
  app.add_option("--simd", arguments.simd, "SIMD target of our kernels, such as AVX2");
  app.add_option("--folder", arguments.folder, "folder for files");
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    std::exit(app.exit(error));
  }
  if (arguments.threads > 0) at::set_num_threads(arguments.threads);
  return arguments;
}

// Our kernels use the target that was asked for while this lives.
inline std::unique_ptr<kernels::ScopedSimdTarget> use_simd(const Arguments& arguments) {
  if (arguments.simd.empty()) return nullptr;
  for (const kernels::SimdTarget& target : kernels::simd_targets()) {
    if (target.name == arguments.simd) return std::make_unique<kernels::ScopedSimdTarget>(target);
  }
  raise<UsageError>("--simd {}: this processor has no such target", arguments.simd);
}

}  // namespace telens::benchmark
