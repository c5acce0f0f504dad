// The FP8 state of one attention: quantizers of its tensors, and what they remember from one
// iteration to the next, in the slots that Transformer Engine's DotProductAttention has.
#pragma once

#include <ATen/core/Tensor.h>

#include <array>
#include <memory>
#include <string>
#include <vector>

#include "core/formats/scheme.h"
#include "core/modules/shared/forward_context.h"
#include "core/quantization/shared_scale.h"

namespace telens {

// Names as in Transformer Engine: S is the softmax of P, the scaled and biased scores. nullptr: the
// tensor is not cast.
struct AttentionQuantizers {
  std::shared_ptr<Quantizer> qkv;
  std::shared_ptr<Quantizer> s;
  std::shared_ptr<Quantizer> o;
  std::shared_ptr<Quantizer> d_o;
  std::shared_ptr<Quantizer> d_p;
  std::shared_ptr<Quantizer> d_qkv;
};

// True if each product casts its operands in blocks along what it adds over; then those of qkv and
// d_o alone are cast.
inline bool casts_in_blocks(const Quantizer& qkv) { return scheme(qkv.mode()).block_length != 0; }

// Scales that the layers around the attention reuse (Recipe::fp8_mha).
struct AttentionScales {
  std::shared_ptr<SharedScale> output = std::make_shared<SharedScale>();
  std::shared_ptr<SharedScale> input_gradients = std::make_shared<SharedScale>();
};

// One forward in FP8 and its backward.
struct Fp8Attention {
  AttentionQuantizers quantizers;
  AttentionScales scales;
  std::shared_ptr<Region> region;
  bool first_in_region = false;  // its backward ends the backward of the region
  bool shares_scales = false;    // Recipe::fp8_mha
  bool hands_output = false;     // the forward's fp8_output
  // The backward's sum of the output times its gradient takes the output's codes.
  bool sums_output_codes = false;
  std::string name;  // the layer's, for messages
};

// Makes its slots when they are first needed: most attentions run in high precision.
class AttentionQuantization {
 public:
  // How a forward runs under `context`, whose recipe has fp8_dpa. asks_gradient: a backward comes.
  Fp8Attention begin(const ForwardContext& context, const AutocastOptions& options,
                     const at::Device& device, bool asks_gradient, const std::string& name);
  // Like begin(), for a forward that a checkpoint recomputes.
  Fp8Attention begin_again(bool asks_gradient, const std::string& name);

  // The groups of slots: query, key and value; the output; the softmax.
  std::vector<LayerQuantization*> groups();

  const AttentionScales& scales() const { return scales_; }

  // Empty before any forward under delayed scaling.
  at::Tensor extra_state() const;
  // Throws UsageError on bytes of another module.
  void set_extra_state(const at::Tensor& bytes);

 private:
  using Contexts = std::array<ForwardContext, 3>;
  void make_groups();
  Fp8Attention of(const Contexts& contexts, const std::string& name) const;

  std::array<std::shared_ptr<LayerQuantization>, 3> groups_ = {};  // all made, or none
  AttentionScales scales_;
};

}  // namespace telens
