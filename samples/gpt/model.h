// A byte-level GPT of TELens modules.
#pragma once

#include <torch/nn/module.h>

#include <memory>
#include <vector>

#include "core/modules/linear/linear.h"
#include "core/modules/norm/norm.h"
#include "core/modules/transformer/transformer_layer.h"

namespace gpt {

class Ranks;

struct ModelOptions {
  std::int64_t layers = 3;
  std::int64_t hidden = 128;
  std::int64_t heads = 4;
  std::int64_t max_sequence = 128;
};

// Layers are named layers.<i>.... and head in debug configurations.
class Model : public torch::nn::Module {
 public:
  // ranks: selects this rank's part of the model; null for the whole model.
  explicit Model(const ModelOptions& options, const Ranks* ranks = nullptr);

  // bytes: int64 [seq, batch] -> logits [seq, batch, 256]; of this rank's rows and samples.
  at::Tensor forward(const at::Tensor& bytes);

 private:
  at::Tensor embedding_;  // [256, hidden]
  at::Tensor angles_;     // rotary position embedding
  std::vector<std::shared_ptr<telens::TransformerLayer>> layers_;
  std::shared_ptr<telens::LayerNorm> norm_;
  std::shared_ptr<telens::Linear> head_;
};

// The whole model, or this rank's part of it: a seed gives the same weights on any ranks.
std::shared_ptr<Model> make_model(const ModelOptions& options, const Ranks& ranks);

}  // namespace gpt
