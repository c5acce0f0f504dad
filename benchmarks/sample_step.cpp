// The GPT sample's training step without a session and with all statistics, and what a record of
// its run costs on disk.
#include <algorithm>

#include "benchmarks/arguments.h"
#include "benchmarks/sample_training.h"
#include "benchmarks/sessions.h"
#include "benchmarks/side_by_side.h"
#include "record/run_reader.h"

namespace {

using telens::benchmark::SampleTraining;

constexpr int kSteps = 10;  // a block holds one iteration that freq 10 watches

double bytes_per_record(const std::string& run) {
  const telens::record::RunReader reader(run);
  double bytes = 0, records = 0;
  for (const auto& segment : reader.segments()) {
    bytes += static_cast<double>(segment.bytes);
    records += static_cast<double>(segment.records);
  }
  return bytes / records;
}

}  // namespace

int main(int argc, char** argv) {
  const auto arguments =
      telens::benchmark::parse_arguments(argc, argv, "The GPT sample's training step.");
  at::manual_seed(1);
  SampleTraining training;
  const auto block = [&] {
    for (int i = 0; i < kSteps; ++i) training.step();
  };
  const auto watched = [&](const std::string& name, int freq) {
    return telens::benchmark::Contender{name, block,
                                        [&training, &arguments, freq] {
                                          // The warm-up is iteration 9, which freq 10 does not
                                          // watch; of 10 to 19 it watches one.
                                          telens::benchmark::begin_session(
                                              telens::benchmark::all_statistics(freq),
                                              arguments.folder, kSteps - 1);
                                          training.step();
                                        },
                                        [] { telens::debug::end_debug(); }};
  };
  telens::benchmark::compare("training step",
                             {{"no session", block, [&] { training.step(); }},
                              watched("all statistics, freq 1", 1),
                              watched("all statistics, freq 10", 10)},
                             {.rounds = arguments.rounds});

  // As many steps as the sample takes by default, so that the file's fixed part, dictionaries and
  // the like, weighs as much as there. Batches of one sequence: as many records in less time.
  SampleTraining small(1);
  const int steps = std::min(300, 30 * arguments.rounds);
  telens::benchmark::begin_session(telens::benchmark::all_statistics(), arguments.folder);
  for (int i = 0; i < steps; ++i) small.step();
  const std::string run = telens::debug::run_path();
  telens::debug::end_debug();
  telens::benchmark::print_samples("bytes per record", {"telens"}, {{bytes_per_record(run)}});
  return 0;
}
