// NVFP4: E2M1 in blocks of 16 elements, E4M3 scales under one FP32 scale of the tensor.
#pragma once

#include <memory>

#include "core/quantization/block_quantizer.h"
#include "core/quantization/recipe.h"

namespace telens {

// The signs of the random Hadamard transform that Transformer Engine uses for every tensor: bit i
// is set where row i of sixteen is negated.
inline constexpr std::uint16_t kRandomHadamardSigns = 0xd7e8;

// By default the training recipe of "Pretraining Large Language Models with NVFP4"
// (arXiv:2509.25149): weights in 16x16 blocks, what feeds wgrad after a random Hadamard transform,
// gradients rounded by chance.
struct TELENS_EXPORT NVFP4BlockScaling final : Recipe {
  NVFP4BlockScaling() { fp8_format = Fp8Format::e4m3; }  // the block scales' format

  bool disable_rht = false;
  bool disable_stochastic_rounding = false;
  bool disable_2d_quantization = false;
  // Activations have a scale for each row in the place of the tensor's, and for each column in what
  // feeds wgrad. Needs disable_rht.
  bool row_scaled_activation = false;

  // The tensors of the forward pass whose blocks are scaled to 4 or to 6, whichever leaves the
  // smaller error (core/ops/four_over_six_formula.h). Those of the backward pass never are.
  enum class Scope : std::uint8_t { none, weights, activations, all };
  Scope four_over_six = Scope::none;
  Scope four_over_six_to_256 = Scope::all;  // their largest scale is 256 instead of 448
  bool four_over_six_squares_errors = false;

  // Throws UsageError where four_over_six or row_scaled_activation and the random Hadamard
  // transform fall on one tensor.
  void check() const;

  std::string_view name() const override { return "nvfp4"; }
  void round_to_nearest() override { disable_stochastic_rounding = true; }
  std::shared_ptr<Quantizer> make_quantizer(TensorRole role,
                                            DelayedScalingState* state) const override;
};

// Stochastic rounding draws one key a tensor from torch's default generator of the tensor's device,
// and draws nothing when it is off.
class TELENS_EXPORT NVFP4Quantizer final : public BlockQuantizer {
 public:
  explicit NVFP4Quantizer(BlockOptions options = {}, Usage usage = {})
      : BlockQuantizer(FormatId::e2m1, options, usage) {}

  // Rows may be any number; the columnwise codes of a transformed tensor are those of whole strips
  // of 16, with rows of zeros behind x's.
  ScalingMode mode() const override { return ScalingMode::nvfp4; }
  std::shared_ptr<Quantizer> copy() const override;

 private:
  ops::BlockCodesPair quantize_matrix(const at::Tensor& x,
                                      const ops::Orientations& orientations) const override;
  // For rows that the transform, if there is one, can take.
  ops::BlockCodesPair quantize_whole(const at::Tensor& x,
                                     const ops::Orientations& orientations) const;
  // The largest magnitudes over the group, rowwise and columnwise; undefined without a group.
  at::Tensor reduced_amaxes(const at::Tensor& x, const ops::Orientations& orientations) const;
};

}  // namespace telens
