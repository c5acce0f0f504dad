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

// Layers are named layers.<i>.<name> and head in debug configurations.
class Model : public torch::nn::Module {
 public:
  // ranks: selects this rank's part of the model; null for the whole model.
  explicit Model(const ModelOptions& options, const Ranks* ranks = nullptr);

  // Maps bytes, int64 [seq, batch], to logits [seq, batch, 256]. Both are this rank's part of the
  // batch.
  at::Tensor forward(const at::Tensor& bytes);

 private:
  at::Tensor embedding_;  // [256, hidden]
  at::Tensor angles_;     // rotary position embedding
  std::vector<std::shared_ptr<telens::TransformerLayer>> layers_;
  std::shared_ptr<telens::LayerNorm> norm_;
  std::shared_ptr<telens::Linear> head_;
};

// Creates the whole model, or this rank's part of it. The weights depend only on the seed, not on
// the number of ranks.
std::shared_ptr<Model> make_model(const ModelOptions& options, const Ranks& ranks);

}  // namespace gpt
