#include "benchmarks/arguments.h"

#include <ATen/Parallel.h>

#include <CLI/CLI.hpp>
#include <cstdlib>

namespace telens::benchmark {

Arguments parse_arguments(int argc, char** argv, const char* description) {
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

std::unique_ptr<kernels::ScopedSimdTarget> use_simd(const Arguments& arguments) {
  if (arguments.simd.empty()) return nullptr;
  for (const kernels::SimdTarget& target : kernels::simd_targets()) {
    if (target.name == arguments.simd) return std::make_unique<kernels::ScopedSimdTarget>(target);
  }
  raise<UsageError>("--simd {}: this processor has no such target", arguments.simd);
}

}  // namespace telens::benchmark
