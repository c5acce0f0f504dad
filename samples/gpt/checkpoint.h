// The training state as a file that torch.load can also read.
#pragma once

#include <torch/nn/module.h>

#include <cstdint>
#include <string>

#include "adamw.h"

namespace gpt {

// steps_done: the number of training steps before the checkpoint.
void save_checkpoint(const std::string& file, const torch::nn::Module& model, const AdamW& adamw,
                     std::int64_t steps_done);

// Returns steps_done. Throws telens::UsageError if the file is missing or belongs to a different
// model.
std::int64_t load_checkpoint(const std::string& file, torch::nn::Module& model, AdamW& adamw);

}  // namespace gpt
