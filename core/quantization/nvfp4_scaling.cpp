#include "core/quantization/nvfp4_scaling.h"

#include <ATen/ops/constant_pad_nd.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/nan_to_num.h>
#include <ATen/ops/stack.h>

#include <limits>

#include "core/distributed/reductions.h"
#include "core/ops/four_over_six.h"
#include "core/ops/quantize.h"
#include "core/quantization/token_padding.h"

namespace telens {
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
