// The training run.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "model.h"
#include "ranks.h"

namespace gpt {

struct TrainingOptions {
  ModelOptions model;
  RankOptions ranks;
  std::int64_t steps = 300;
  std::uint64_t seed = 1;
  std::int64_t batch = 16;
  std::int64_t sequence = 128;
  double learning_rate = 3e-3;
  std::string recipe = "delayed";
  std::string device = "auto";  // cpu, cuda; auto: cuda if there is one that this build can use
  std::string text;             // folder; "": Python's standard library
  std::int64_t text_bytes = 4 << 20;    // read at most this much
  std::string config;                   // debug YAML; "": no session
  std::string log_dir = "telens_runs";  // the debug session's
  std::string loss_file;                // "": none
  std::string save;                     // checkpoint to write; "": none
  std::int64_t save_at = 0;             // after how many steps; 0: after the last
  std::string resume;                   // checkpoint to go on from; "": none
  // The mean loss of the last steps must be at least this much below the text's bigram entropy, in
  // nats, or train() throws when all is done.
  std::optional<double> below_bigrams;
};

// Trains and prints what came of it; on each of the ranks. Throws telens::Error.
void train(const TrainingOptions& options);

}  // namespace gpt
