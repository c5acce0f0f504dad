#include "model.h"

#include <ATen/ops/embedding.h>
#include <ATen/ops/randn.h>
#include <fmt/format.h>

#include "core/modules/attention/rotary_embedding.h"
#include "ranks.h"

namespace gpt {
namespace {

// Created on the CPU, so that the weights depend only on the seed; train() moves them to the
// device.
telens::ParameterOptions on_cpu() {
  telens::ParameterOptions options;
  options.device = at::kCPU;
  return options;
}

constexpr std::int64_t kBytes = 256;
constexpr double kInitialDeviation = 0.02;

}  // namespace

Model::Model(const ModelOptions& options, const Ranks* ranks) {
  embedding_ =
      register_parameter("embedding", at::randn({kBytes, options.hidden}) * kInitialDeviation);
  angles_ = telens::rotary_angles(options.max_sequence, options.hidden / options.heads);
  for (std::int64_t i = 0; i < options.layers; ++i) {
    telens::TransformerLayerOptions of_layer{.hidden_size = options.hidden,
                                             .ffn_hidden_size = 4 * options.hidden,
                                             .num_attention_heads = options.heads,
                                             .hidden_dropout = 0,
                                             .attention_dropout = 0,
                                             .layer_number = i + 1,
                                             .fuse_qkv_params = true,
                                             .parameters = on_cpu(),
                                             .name = fmt::format("layers.{}", i)};
    if (ranks != nullptr) ranks->divide(of_layer);
    layers_.push_back(register_module(fmt::format("layer{}", i),
                                      std::make_shared<telens::TransformerLayer>(of_layer)));
    if (ranks != nullptr) ranks->share_sequences(*layers_.back());
  }
  norm_ =
      register_module("norm", std::make_shared<telens::LayerNorm>(telens::NormModuleOptions{
                                  .normalized_shape = {options.hidden}, .parameters = on_cpu()}));
  head_ = register_module(
      "head", std::make_shared<telens::Linear>(telens::LinearOptions{.in_features = options.hidden,
                                                                     .out_features = kBytes,
                                                                     .bias = false,
                                                                     .parameters = on_cpu(),
                                                                     .name = "head"}));
}

at::Tensor Model::forward(const at::Tensor& bytes) {
  angles_ = angles_.to(bytes.device());
  at::Tensor hidden = at::embedding(embedding_, bytes);
  for (const auto& layer : layers_) {
    hidden = (*layer)({.hidden_states = hidden, .rotary_pos_emb = {angles_}})[0];
  }
  return (*head_)({.inp = (*norm_)({.inp = hidden})[0]})[0];
}

std::shared_ptr<Model> make_model(const ModelOptions& options, const Ranks& ranks) {
  const auto whole = std::make_shared<Model>(options);
  if (!ranks.divides_model()) return whole;
  const auto own = std::make_shared<Model>(options, &ranks);
  ranks.copy_own_part(*own, *whole);
  return own;
}

}  // namespace gpt
