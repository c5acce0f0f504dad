#include "core/quantization/block_scaling.h"

#include <ATen/ops/constant_pad_nd.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/nan_to_num.h>
#include <ATen/ops/stack.h>

#include <limits>

#include "core/base/error.h"
#include "core/distributed/collectives.h"
#include "core/distributed/compare_ranks.h"
#include "core/ops/block_quantize.h"
#include "core/ops/quantize.h"
#include "core/quantization/quantized_tensor.h"

namespace telens {
namespace {

QuantizedData get_data(const ops::BlockCodes& quantized) {
  return {quantized.codes, quantized.scale_inv, quantized.tensor_scale};
}

}  // namespace

QuantizedTensor BlockQuantizer::quantize(const at::Tensor& x, Usage usage) const {
  const auto [rowwise, columnwise] =
      quantize_matrix(flattened(x), {usage.rowwise, usage.columnwise});
  QuantizedTensor out;
  out.rowwise = get_data(rowwise);
  out.columnwise = get_data(columnwise);
  out.format = format();
  out.mode = mode();
  out.dtype = x.scalar_type();
  out.sizes = x.sizes().vec();
  out.blocks = options_;
  out.power_of_2_scales = makes_power_of_2_scales();
  return out;
}

void BlockQuantizer::quantize_into(const at::Tensor& x, QuantizedTensor& out) const {
  if (x.sizes() != at::IntArrayRef(out.sizes) || out.format != format() || out.mode != mode()) {
    raise<ShapeError>(
        "quantize: the storage to fill is {} {} for a tensor of shape {}; got shape {} and a "
        "quantizer to {} {}",
        get_name(out.mode), get_name(out.format), c10::str(at::IntArrayRef(out.sizes)),
        c10::str(x.sizes()), get_name(mode()), get_name(format()));
  }
  const auto [rowwise, columnwise] =
      quantize_matrix(flattened(x), {out.rowwise.defined(), out.columnwise.defined()});
  out.rowwise.fill(get_data(rowwise));
  out.columnwise.fill(get_data(columnwise));
  out.blocks = options_;
  out.power_of_2_scales = makes_power_of_2_scales();
}

bool BlockQuantizer::makes_power_of_2_scales() const {
  return has_128_blocks(mode()) && options_.power_of_2_scales;
}

bool BlockQuantizer::quantizes_as(const Quantizer& other) const {
  return Quantizer::quantizes_as(other) &&
         options_ == static_cast<const BlockQuantizer&>(other).options_;
}

std::shared_ptr<Quantizer> MXFP8BlockScaling::make_quantizer(TensorRole role,
                                                             DelayedScalingState*) const {
  const bool square = enable_2d_quantization && role == TensorRole::weight;
  return std::make_shared<MXFP8Quantizer>(get_format(role),
                                          BlockOptions{.two_dimensional = square});
}

ops::BlockCodesPair MXFP8Quantizer::quantize_matrix(const at::Tensor& x,
                                                    const ops::Orientations& orientations) const {
  return ops::quantize_mxfp8(
      x, format(),
      {.scale_rounding = options().scale_rounding, .two_dimensional = options().two_dimensional},
      orientations);
}

std::shared_ptr<Quantizer> MXFP8Quantizer::copy() const {
  return std::make_shared<MXFP8Quantizer>(*this);
}

std::string_view MXFP6BlockScaling::name() const {
  const auto mode =
      ops::check_mxfp6_format("MXFP6BlockScaling", static_cast<std::int64_t>(element));
  return get_name(*scheme(mode).recipe);
}

std::shared_ptr<Quantizer> MXFP6BlockScaling::make_quantizer(TensorRole role,
                                                             DelayedScalingState*) const {
  const bool square = enable_2d_quantization && role == TensorRole::weight;
  return std::make_shared<MXFP6Quantizer>(element, BlockOptions{.two_dimensional = square});
}

MXFP6Quantizer::MXFP6Quantizer(FormatId format, BlockOptions options, Usage usage)
    : BlockQuantizer(format, options, usage),
      mode_(ops::check_mxfp6_format("MXFP6Quantizer", static_cast<std::int64_t>(format))) {}

ops::BlockCodesPair MXFP6Quantizer::quantize_matrix(const at::Tensor& x,
                                                    const ops::Orientations& orientations) const {
  return ops::quantize_mxfp6(
      x, format(),
      {.scale_rounding = options().scale_rounding, .two_dimensional = options().two_dimensional},
      orientations);
}

std::shared_ptr<Quantizer> MXFP6Quantizer::copy() const {
  return std::make_shared<MXFP6Quantizer>(*this);
}

namespace {

void check_dimensions(const Float8BlockScaling& recipe) {
  const bool squares[] = {recipe.x_block_scaling_dim == 2, recipe.w_block_scaling_dim == 2,
                          recipe.grad_block_scaling_dim == 2};
  if (squares[0] + squares[1] + squares[2] > 1) {
    raise<UsageError>(
        "Float8BlockScaling: x_block_scaling_dim, w_block_scaling_dim and grad_block_scaling_dim "
        "are {}, {} and {}; at most one may be 2, since no GEMM multiplies 128x128 blocks by "
        "128x128 blocks",
        recipe.x_block_scaling_dim, recipe.w_block_scaling_dim, recipe.grad_block_scaling_dim);
  }
}

}  // namespace

std::shared_ptr<Quantizer> Float8BlockScaling::make_quantizer(TensorRole role,
                                                              DelayedScalingState*) const {
  check_dimensions(*this);
  const bool weight = role == TensorRole::weight;
  const CurrentScalingOptions& scaling = is_backward(role) ? fp8_quant_bwd_grad
                                         : weight          ? fp8_quant_fwd_weight
                                                           : fp8_quant_fwd_inp;
  const std::int64_t dimension = is_backward(role) ? grad_block_scaling_dim
                                 : weight          ? w_block_scaling_dim
                                                   : x_block_scaling_dim;
  return std::make_shared<Float8BlockQuantizer>(
      get_format(role), dimension,
      BlockOptions{.power_of_2_scales = scaling.power_2_scale,
                   .amax_epsilon = scaling.amax_epsilon});
}

Float8BlockQuantizer::Float8BlockQuantizer(FormatId format, std::int64_t block_scaling_dim,
                                           BlockOptions options, Usage usage)
    : BlockQuantizer(format, options, usage),
      mode_(block_scaling_dim == 2 ? ScalingMode::block_2d : ScalingMode::block_1d) {
  if (block_scaling_dim != 1 && block_scaling_dim != 2) {
    raise<UsageError>("block_scaling_dim is {}; expected 1 (1x128 blocks) or 2 (128x128)",
                      block_scaling_dim);
  }
}

ops::BlockCodesPair Float8BlockQuantizer::quantize_matrix(
    const at::Tensor& x, const ops::Orientations& orientations) const {
  return ops::quantize_fp8_blocks(x, format(),
                                  {.two_dimensional = mode_ == ScalingMode::block_2d,
                                   .power_of_2_scales = options().power_of_2_scales,
                                   .amax_epsilon = options().amax_epsilon},
                                  orientations);
}

std::shared_ptr<Quantizer> Float8BlockQuantizer::copy() const {
  return std::make_shared<Float8BlockQuantizer>(*this);
}

namespace {

static_assert(four_over_six::kBlock == block_length(ScalingMode::nvfp4));

// Ignores NaN, like the quantization itself.
at::Tensor largest_number(const at::Tensor& x) {
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  return ops::amax(at::nan_to_num(x, 0, kInfinity, -kInfinity));
}

bool includes(NVFP4BlockScaling::Scope scope, TensorRole role) {
  using Scope = NVFP4BlockScaling::Scope;
  if (is_backward(role)) return false;
  return scope == Scope::all ||
         scope == (role == TensorRole::weight ? Scope::weights : Scope::activations);
}

}  // namespace

void NVFP4BlockScaling::check() const {
  if (!disable_rht && includes(four_over_six, TensorRole::input)) {
    raise<UsageError>(
        "NVFP4BlockScaling: nvfp4_4over6 of activations excludes their random Hadamard transform; "
        "set disable_rht, or nvfp4_4over6 to 'weights'");
  }
  if (!disable_rht && row_scaled_activation) {
    raise<UsageError>(
        "NVFP4BlockScaling: row_scaled_activation excludes the random Hadamard transform of "
        "activations, as in Transformer Engine; set disable_rht");
  }
}

std::shared_ptr<Quantizer> NVFP4BlockScaling::make_quantizer(TensorRole role,
                                                             DelayedScalingState*) const {
  check();
  BlockOptions options;
  if (role == TensorRole::weight) {
    options.two_dimensional = !disable_2d_quantization;
  } else if (!disable_rht) {
    options.hadamard_signs = kRandomHadamardSigns;
  }
  options.stochastic_rounding = is_backward(role) && !disable_stochastic_rounding;
  options.row_scaled = row_scaled_activation && !is_backward(role) && role != TensorRole::weight;
  if (includes(four_over_six, role)) {
    options.four_over_six = {four_over_six_squares_errors,
                             includes(four_over_six_to_256, role) ? 256.0F : 448.0F};
  }
  return std::make_shared<NVFP4Quantizer>(options);
}

// The random Hadamard transform mixes 16 rows; missing rows are zeros. The transformed zeros are
// not zero, so the columnwise codes keep all 16 rows. The rowwise codes contain only x.
ops::BlockCodesPair NVFP4Quantizer::quantize_matrix(const at::Tensor& x,
                                                    const ops::Orientations& orientations) const {
  if (options().row_scaled && amax_reduction_group()) {
    raise<UsageError>(
        "NVFP4: row_scaled_activation (a scale per row) excludes a reduction of amaxes over "
        "ranks, which a layer with sequence_parallel requires, as in Transformer Engine; "
        "disable one of them");
  }
  const std::int64_t rows = x.size(0);
  const bool rotates = options().hadamard_signs && orientations.columnwise;
  if (rotates && rows != rows_to_transform(rows)) {
    const at::Tensor whole = at::constant_pad_nd(x, {0, 0, 0, rows_to_transform(rows) - rows});
    ops::BlockCodesPair pair = quantize_whole(whole, orientations);
    if (orientations.rowwise) {
      pair.rowwise.codes = pair.rowwise.codes.narrow(0, 0, rows);
      pair.rowwise.scale_inv = pair.rowwise.scale_inv.narrow(0, 0, rows);
    }
    return pair;
  }
  return quantize_whole(x, orientations);
}

ops::BlockCodesPair NVFP4Quantizer::quantize_whole(const at::Tensor& x,
                                                   const ops::Orientations& orientations) const {
  if (options().four_over_six) {
    return ops::quantize_four_over_six(x,
                                       {.two_dimensional = options().two_dimensional,
                                        .choice = *options().four_over_six,
                                        .amaxes = reduced_amaxes(x, orientations),
                                        .row_scaled = options().row_scaled},
                                       orientations);
  }
  at::Tensor random_state;
  if (options().stochastic_rounding) {
    random_state = at::empty({2}, x.options().dtype(at::kLong)).random_();
  }
  return ops::quantize_nvfp4(x,
                             {.two_dimensional = options().two_dimensional,
                              .hadamard_signs = options().hadamard_signs,
                              .random_state = random_state,
                              .amaxes = reduced_amaxes(x, orientations),
                              .row_scaled = options().row_scaled},
                             orientations);
}

at::Tensor NVFP4Quantizer::reduced_amaxes(const at::Tensor& x,
                                          const ops::Orientations& orientations) const {
  if (!amax_reduction_group()) return {};
  const bool rotates = options().hadamard_signs && orientations.columnwise;
  const at::Tensor columnwise = rotates ? ops::hadamard_transform(x, *options().hadamard_signs) : x;
  const at::Tensor amaxes = at::stack({largest_number(x), largest_number(columnwise)});
  AmaxReduction reduction;
  reduction.add(amaxes, amax_reduction_group());
  reduction.run();
  return amaxes;
}

std::shared_ptr<Quantizer> NVFP4Quantizer::copy() const {
  return std::make_shared<NVFP4Quantizer>(*this);
}

}  // namespace telens
