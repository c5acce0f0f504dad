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
  std::string device = "auto";          // cpu, cuda, or auto: cuda if this build can use a GPU
  std::string text;                     // folder; "" for Python's standard library
  std::int64_t text_bytes = 4 << 20;    // maximum number of bytes to read
  std::string config;                   // debug YAML; "" for no session
  std::string log_dir = "telens_runs";  // of the debug session
  std::string loss_file;                // "" for none
  std::string save;                     // checkpoint to write; "" for none
  std::int64_t save_at = 0;             // number of steps before it is written; 0 for all
  std::string resume;                   // checkpoint to resume from; "" for none
  // In nats. If set, train() throws at its end unless the mean loss of the last steps is at least
  // this much below the text's bigram entropy.
  std::optional<double> below_bigrams;
};

// Trains and prints the result. Called on every rank. Throws telens::Error.
void train(const TrainingOptions& options);

}  // namespace gpt
