// Trains a byte-level GPT on real text, watched by a debug configuration:
//   gpt --config debug.yaml --log-dir logs --recipe delayed
//   torchrun --no-python --nproc-per-node 2 gpt --tp 2 --sp
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <string>

#include "core/base/error.h"
#include "inspector_cli/command_line/unknown_option.h"
#include "training.h"

namespace {

constexpr int kWrongUse = 2;

void add_options(CLI::App& app, gpt::TrainingOptions& options) {
  app.add_option("--config", options.config, "debug configuration (YAML)")
      ->check(CLI::ExistingFile);
  app.add_option("--log-dir", options.log_dir, "folder of the session's records")
      ->capture_default_str();
  app.add_option("--recipe", options.recipe, "precision of the linear layers")
      ->check(CLI::IsMember({"delayed", "current", "mxfp8", "block", "nvfp4", "bf16", "fp32"}))
      ->capture_default_str();
  app.add_option("--device", options.device,
                 "auto: cuda if there is a GPU, and this build and the recipe use it")
      ->check(CLI::IsMember({"auto", "cpu", "cuda"}))
      ->capture_default_str();
  app.add_option("--steps", options.steps, "training steps, those before --resume included")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  app.add_option("--seed", options.seed, "of weights and batches")->capture_default_str();
  app.add_option("--loss-file", options.loss_file,
                 "writes the hexadecimal FP32 bits of each step's loss, one per line");
  app.add_option("--text", options.text,
                 "folder of text files; default: Python's standard library");
  app.add_option("--text-bytes", options.text_bytes, "reads at most this much text")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  app.add_option("--below-bigrams", options.below_bigrams,
                 "fails unless the mean loss of the last 50 steps is at least this many nats below "
                 "the text's bigram entropy");
  app.add_option("--save", options.save, "writes a checkpoint");
  app.add_option("--save-at", options.save_at, "after this many steps; default: after the last");
  app.add_option("--resume", options.resume, "resumes from a checkpoint")->check(CLI::ExistingFile);
}

void add_size_options(CLI::App& app, gpt::TrainingOptions& options) {
  const auto add_size = [&](const char* name, std::int64_t& value, const char* help) {
    app.add_option(name, value, help)->check(CLI::PositiveNumber)->capture_default_str();
  };
  add_size("--layers", options.model.layers, "Transformer layers");
  add_size("--hidden", options.model.hidden, "width of the model, divisible by 16");
  add_size("--heads", options.model.heads, "attention heads");
  add_size("--sequence", options.sequence, "bytes a sequence");
  add_size("--batch", options.batch, "sequences a step");
  app.add_option("--learning-rate", options.learning_rate, "peak of AdamW's")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
}

void add_rank_options(CLI::App& app, gpt::RankOptions& options) {
  const auto add_ranks = [&](const char* name, std::int64_t& value, const char* help) {
    app.add_option(name, value, help)->check(CLI::PositiveNumber)->capture_default_str();
  };
  add_ranks("--tp", options.tp, "ranks that share each layer, started by torchrun");
  app.add_flag("--sp", options.sequence_parallel,
               "they divide the sequence between the layers too");
  add_ranks("--cp", options.cp, "ranks that share each sequence, in attention too");
  app.add_option("--cp-comm-type", options.cp_comm_type,
                 "how attention sees the keys of all of them")
      ->check(CLI::IsMember({"p2p", "all_gather", "a2a"}))
      ->capture_default_str();
  add_ranks("--dp", options.dp, "groups of ranks that share the batch");
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app("Trains a byte-level GPT of TELens modules on real text.");
  gpt::TrainingOptions options;
  add_options(app, options);
  add_size_options(app, options);
  add_rank_options(app, options.ranks);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    if (error.get_exit_code() == 0) return app.exit(error);
    fmt::print(stderr, "gpt: {}; `gpt --help` explains\n",
               telens::cli::unknown_option(app, app).value_or(error.what()));
    return kWrongUse;
  }
  try {
    gpt::train(options);
  } catch (const telens::UsageError& error) {
    fmt::print(stderr, "gpt: {}\n", error.what());
    return kWrongUse;
  } catch (const std::exception& error) {
    fmt::print(stderr, "gpt: {}\n", error.what());
    return 1;
  }
  return 0;
}
