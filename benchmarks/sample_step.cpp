// The GPT sample's training step without a session and with all statistics, and what a record of
// its run costs on disk.
#include <ATen/ATen.h>

#include <algorithm>

#include "benchmarks/arguments.h"
#include "benchmarks/sessions.h"
#include "benchmarks/side_by_side.h"
#include "features/record/run_reader.h"
#include "samples/gpt/adamw.h"
#include "samples/gpt/model.h"
#include "samples/gpt/precision.h"
#include "samples/gpt/text.h"
#include "samples/gpt/training.h"

namespace {

constexpr int kSteps = 10;  // a block holds one iteration that freq 10 watches

class Training {
 public:
  explicit Training(std::int64_t batch = gpt::TrainingOptions().batch)
      : batch_(batch),
        text_(gpt::Text::load("", options_.text_bytes)),
        model_(options_.model),
        adamw_(parameters(), {}) {}

  void step() {
    const gpt::Batch batch =
        text_.batch(options_.seed, step_++, {.sequence = options_.sequence, .batch = batch_});
    at::Tensor loss;
    {
      const gpt::Precision::Region region(precision_);
      const at::Tensor logits = model_.forward(batch.inputs).to(at::kFloat);
      loss = at::cross_entropy_loss(logits.flatten(0, 1), batch.targets.flatten());
    }
    loss.backward();
    adamw_.step(options_.learning_rate / 10);
    telens::debug::step(loss.item<float>());
  }

 private:
  gpt::AdamW::NamedTensors parameters() {
    gpt::AdamW::NamedTensors all;
    for (const auto& item : model_.named_parameters()) all.emplace_back(item.key(), item.value());
    return all;
  }

  gpt::TrainingOptions options_;
  std::int64_t batch_;
  gpt::Text text_;
  gpt::Model model_;
  gpt::AdamW adamw_;
  gpt::Precision precision_{"delayed"};
  std::int64_t step_ = 0;
};

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
  Training training;
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
  Training small(1);
  const int steps = std::min(300, 30 * arguments.rounds);
  telens::benchmark::begin_session(telens::benchmark::all_statistics(), arguments.folder);
  for (int i = 0; i < steps; ++i) small.step();
  const std::string run = telens::debug::run_path();
  telens::debug::end_debug();
  telens::benchmark::print_samples("bytes per record", {"telens"}, {{bytes_per_record(run)}});
  return 0;
}
