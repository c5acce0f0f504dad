// The FP8 state of an attention: the quantizers of its tensors and their state between iterations,
// in the slots of Transformer Engine's DotProductAttention, and the recipe that applies to them.
#pragma once

#include <ATen/core/Tensor.h>

#include <array>
#include <memory>
#include <string>
#include <vector>

#include "core/formats/scheme.h"
#include "core/modules/shared/forward_context.h"
#include "core/quantization/recipe.h"
#include "core/quantization/shared_scale.h"

namespace telens {

// Quantizers, named as in Transformer Engine: S is the softmax of P, the scaled and biased scores.
// nullptr if the tensor is not quantized.
struct AttentionQuantizers {
  std::shared_ptr<Quantizer> qkv;
  std::shared_ptr<Quantizer> s;
  std::shared_ptr<Quantizer> o;
  std::shared_ptr<Quantizer> d_o;
  std::shared_ptr<Quantizer> d_p;
  std::shared_ptr<Quantizer> d_qkv;
};

// True if each GEMM quantizes its operands in blocks along its summed dimension. Then only qkv and
// d_o are quantized.
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
  bool first_in_region = false;  // its backward ends the region's backward
  bool shares_scales = false;    // Recipe::fp8_mha
  bool attaches_output = false;  // the forward's fp8_output
  // The backward computes the sum of output times gradient from the output's codes.
  bool sums_output_codes = false;
  std::string name;  // the layer's name for messages
};

// Creates its slots on demand: most attentions run in high precision.
class AttentionQuantization {
 public:
  // Begins a forward under `context`, whose recipe has fp8_dpa. asks_gradient: a backward follows.
  Fp8Attention begin(const ForwardContext& context, const AutocastOptions& options,
                     const at::Device& device, bool asks_gradient, const std::string& name);
  // Like begin(), for a forward that a checkpoint recomputes.
  Fp8Attention begin_again(bool asks_gradient, const std::string& name);

  // The groups of slots: query, key and value; the output; the softmax.
  std::vector<LayerQuantization*> groups();

  const AttentionScales& scales() const { return scales_; }

  // Empty before the first forward under delayed scaling.
  at::Tensor extra_state() const;
  // Throws UsageError on bytes of another module. `key`: the checkpoint's entry, for messages.
  void set_extra_state(const at::Tensor& bytes, const std::string& key);

 private:
  using Contexts = std::array<ForwardContext, 3>;
  void make_groups();
  Fp8Attention of(const Contexts& contexts, const std::string& name) const;

  std::array<std::shared_ptr<LayerQuantization>, 3> groups_ = {};  // all or none are set
  AttentionScales scales_;
};

// ---- Transformer Engine's variables about FP8 attention

// The recipes of an attention, according to Transformer Engine's variables, read in each forward
// under a recipe with fp8_dpa: NVTE_DPA_FP8_RECIPE with NVTE_DPA_FP8_FORMAT,
// NVTE_DPA_FP8DS_AMAX_ALGO, NVTE_DPA_FP8DS_AMAX_HISTLEN, NVTE_DPA_FP8DS_REDUCE_AMAX,
// NVTE_FP8_DPA_BWD and NVTE_DPA_FP8CS_O_in_F16. Keeps the most recent recipe: a new object would
// recreate the quantizers.
class AttentionRecipes {
 public:
  // recipe: the autocast's, with fp8_dpa. Returns nullptr if attention runs in high precision.
  // Throws UsageError for a variable value that Transformer Engine does not have, and for recipes
  // that attention does not support.
  std::shared_ptr<const Recipe> of(const std::shared_ptr<const Recipe>& recipe);

 private:
  std::shared_ptr<const Recipe> given_;
  std::string variables_;
  std::shared_ptr<const Recipe> made_;
};

// False if the backward of an FP8 attention runs in high precision.
bool has_fp8_backward();

// False if, under current scaling, the backward computes the sum of output times gradient from the
// output's codes.
bool has_output_in_high_precision();

}  // namespace telens
