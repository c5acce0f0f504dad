// Recipes and quantizers with one scale per block: MXFP8, MXFP6, FP8 in 128-blocks and NVFP4.
#pragma once

#include <memory>

#include "core/ops/block_quantize.h"
#include "core/quantization/current_scaling.h"
#include "core/quantization/quantizer.h"
#include "core/quantization/recipe.h"

namespace telens {

// Base class of their quantizers. Scales come from the blocks themselves, so state and calibration
// are not needed.
class TELENS_EXPORT BlockQuantizer : public Quantizer {
 public:
  BlockQuantizer(FormatId format, BlockOptions options, Usage usage)
      : Quantizer(format, usage), options_(options) {}

  using Quantizer::quantize;
  QuantizedTensor quantize(const at::Tensor& x, Usage usage) const final;
  void quantize_into(const at::Tensor& x, QuantizedTensor& out) const final;
  void calibrate(const at::Tensor&) const final {}

  bool quantizes_as(const Quantizer& other) const final;

  const BlockOptions& options() const { return options_; }

 protected:
  // Quantizes a matrix.
  virtual ops::BlockCodesPair quantize_matrix(const at::Tensor& x,
                                              const ops::Orientations& orientations) const = 0;

 private:
  bool makes_power_of_2_scales() const;  // FP32 scales of 128-blocks

  BlockOptions options_;
};

// MXFP8: blocks of 32 elements with a power-of-two scale (OCP Microscaling Formats 1.0).
struct TELENS_EXPORT MXFP8BlockScaling final : Recipe {
  MXFP8BlockScaling() { fp8_format = Fp8Format::e4m3; }

  std::int64_t margin = 0;              // no effect, as in Transformer Engine
  bool enable_2d_quantization = false;  // weights: one scale for 32x32 elements

  std::string_view name() const override { return "mxfp8"; }
  std::shared_ptr<Quantizer> make_quantizer(TensorRole role,
                                            DelayedScalingState* state) const override;
};

class TELENS_EXPORT MXFP8Quantizer final : public BlockQuantizer {
 public:
  explicit MXFP8Quantizer(FormatId format, BlockOptions options = {}, Usage usage = {})
      : BlockQuantizer(format, options, usage) {}

  ScalingMode mode() const override { return ScalingMode::mxfp8; }
  std::shared_ptr<Quantizer> copy() const override;

 private:
  ops::BlockCodesPair quantize_matrix(const at::Tensor& x,
                                      const ops::Orientations& orientations) const override;
};

// MXFP6: blocks of 32 elements of six bits with a power-of-two scale (OCP Microscaling
// Formats 1.0). CPU only.
struct TELENS_EXPORT MXFP6BlockScaling final : Recipe {
  // element: E3M2 (more range) or E2M3 (more precision), for all tensors.
  explicit MXFP6BlockScaling(FormatId element) : element(element) { fp8_format = Fp8Format::e4m3; }

  FormatId element;
  bool enable_2d_quantization = false;  // weights: one scale for 32x32 elements

  std::string_view name() const override;
  std::shared_ptr<Quantizer> make_quantizer(TensorRole role,
                                            DelayedScalingState* state) const override;
};

class TELENS_EXPORT MXFP6Quantizer final : public BlockQuantizer {
 public:
  // Throws UsageError if the format is neither E3M2 nor E2M3.
  explicit MXFP6Quantizer(FormatId format, BlockOptions options = {}, Usage usage = {});

  ScalingMode mode() const override { return mode_; }
  std::shared_ptr<Quantizer> copy() const override;

 private:
  ops::BlockCodesPair quantize_matrix(const at::Tensor& x,
                                      const ops::Orientations& orientations) const override;

  ScalingMode mode_;
};

// FP8 in 128-blocks: one scale per 1x128 elements (activations, gradients) or 128x128 (weights).
struct TELENS_EXPORT Float8BlockScaling final : Recipe {
  Float8BlockScaling() {
    fp8_format = Fp8Format::e4m3;
    fp8_gemm_fprop = {.use_split_accumulator = true};
  }

  // By default scales are powers of 2.
  CurrentScalingOptions fp8_quant_fwd_inp = {.power_2_scale = true};
  CurrentScalingOptions fp8_quant_fwd_weight = {.power_2_scale = true};
  CurrentScalingOptions fp8_quant_bwd_grad = {.power_2_scale = true};
  // 1: 1x128 blocks; 2: 128x128. No GEMM multiplies two 128x128 operands, so at most one is 2.
  std::int64_t x_block_scaling_dim = 1;
  std::int64_t w_block_scaling_dim = 2;
  std::int64_t grad_block_scaling_dim = 1;

  std::string_view name() const override { return "fp8_block_scaling"; }
  // Throws UsageError for combinations that no GEMM supports.
  std::shared_ptr<Quantizer> make_quantizer(TensorRole role,
                                            DelayedScalingState* state) const override;
};

class TELENS_EXPORT Float8BlockQuantizer final : public BlockQuantizer {
 public:
  // block_scaling_dim: 1 or 2. Throws UsageError for any other.
  Float8BlockQuantizer(FormatId format, std::int64_t block_scaling_dim, BlockOptions options = {},
                       Usage usage = {});

  ScalingMode mode() const override { return mode_; }
  std::shared_ptr<Quantizer> copy() const override;

 private:
  ops::BlockCodesPair quantize_matrix(const at::Tensor& x,
                                      const ops::Orientations& orientations) const override;

  ScalingMode mode_;
};

// NVFP4: E2M1 in blocks of 16 elements, with E4M3 block scales and an FP32 tensor scale.

// The signs of the random Hadamard transform, Transformer Engine's constant: bit i negates row i of
// sixteen.
inline constexpr std::uint16_t kRandomHadamardSigns = 0xd7e8;

// Defaults to the training recipe of "Pretraining Large Language Models with NVFP4"
// (arXiv:2509.25149): weights in 16x16 blocks, operands of wgrad after a random Hadamard transform,
// gradients with stochastic rounding.
struct TELENS_EXPORT NVFP4BlockScaling final : Recipe {
  NVFP4BlockScaling() { fp8_format = Fp8Format::e4m3; }  // the block scales' format

  bool disable_rht = false;
  bool disable_stochastic_rounding = false;
  bool disable_2d_quantization = false;
  // Activations have one scale per row instead of one per tensor, and one per column as operands of
  // wgrad. Requires disable_rht.
  bool row_scaled_activation = false;

  // The forward tensors whose blocks are scaled to 4 or to 6, whichever has the smaller error
  // (core/ops/four_over_six_formula.h). Gradients are never scaled this way.
  enum class Scope : std::uint8_t { none, weights, activations, all };
  Scope four_over_six = Scope::none;
  Scope four_over_six_to_256 = Scope::all;  // the largest scale is 256 instead of 448
  bool four_over_six_squares_errors = false;

  // Throws UsageError if four_over_six or row_scaled_activation and the random Hadamard transform
  // apply to the same tensor.
  void check() const;

  std::string_view name() const override { return "nvfp4"; }
  void round_to_nearest() override { disable_stochastic_rounding = true; }
  std::shared_ptr<Quantizer> make_quantizer(TensorRole role,
                                            DelayedScalingState* state) const override;
};

// Stochastic rounding draws one key per tensor from torch's default generator of the tensor's
// device. Without it, nothing is drawn.
class TELENS_EXPORT NVFP4Quantizer final : public BlockQuantizer {
 public:
  explicit NVFP4Quantizer(BlockOptions options = {}, Usage usage = {})
      : BlockQuantizer(FormatId::e2m1, options, usage) {}

  // Accepts any number of rows. The columnwise codes of a transformed tensor are padded with zero
  // rows to a multiple of 16.
  ScalingMode mode() const override { return ScalingMode::nvfp4; }
  std::shared_ptr<Quantizer> copy() const override;

 private:
  ops::BlockCodesPair quantize_matrix(const at::Tensor& x,
                                      const ops::Orientations& orientations) const override;
  // Requires a number of rows that the transform supports.
  ops::BlockCodesPair quantize_whole(const at::Tensor& x,
                                     const ops::Orientations& orientations) const;
  // Returns the rowwise and columnwise amaxes over the group; undefined without a group.
  at::Tensor reduced_amaxes(const at::Tensor& x, const ops::Orientations& orientations) const;
};

}  // namespace telens
