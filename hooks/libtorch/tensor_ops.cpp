#include "hooks/tensor_ops.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/full.h>
#include <ATen/ops/index_select.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros_like.h>

#include <algorithm>
#include <utility>

#include "core/ops/attention.h"
#include "core/ops/block_errors.h"
#include "core/ops/collective_sums.h"
#include "core/ops/device.h"
#include "core/ops/histogram.h"
#include "core/ops/statistics.h"
#include "core/ops/tensor_digest.h"
#include "core/quantization/block_scaling.h"
#include "core/quantization/current_scaling.h"
#include "core/quantization/quantized_tensor.h"
#include "core/torch_compat.h"
#include "hooks/libtorch/block_quantizers.h"
#include "hooks/streams.h"

namespace telens::tensor_ops {
namespace {

ops::StatisticsCasts to_casts(const StatisticsCasts& casts) {
  return {to_torch(casts.scales), casts.formats, casts.moments};
}

ops::BlockCast to_cast(const BlockCast& cast) {
  return {{to_torch(cast.codes.codes), to_torch(cast.codes.scale_inv),
           to_torch(cast.codes.tensor_scale)},
          cast.format,
          cast.mode};
}

std::shared_ptr<BlockQuantizer> default_quantizer(RecipeId recipe, FormatId format,
                                                  TensorName tensor) {
  return features::default_block_quantizer(recipe, format, get_role(tensor));
}

}  // namespace

bool is_capturing(const TensorHandle& x) { return ops::is_capturing(to_torch(x)); }

// ---- memory

TensorHandle filled(std::int64_t count, std::int64_t value, DeviceId device) {
  return at::full({count}, value, at::TensorOptions(at::kLong).device(to_torch(device)));
}

void fill(const TensorHandle& x, std::int64_t value) { to_torch(x).fill_(value); }

void copy(const TensorHandle& into, const TensorHandle& from) {
  to_torch(into).copy_(to_torch(from));
}

TensorHandle clone(const TensorHandle& x) { return to_torch(x).clone(); }

TensorHandle copy_as_doubles(const TensorHandle& x) {
  const at::Tensor given = to_torch(x);
  return given.detach()
      .to(given.options().dtype(at::kDouble), /*non_blocking=*/false, /*copy=*/true)
      .flatten();
}

TensorHandle front(const TensorHandle& x, std::int64_t count) {
  return to_torch(x).narrow(0, 0, count);
}

std::vector<TensorHandle> repeat(const TensorHandle& row, std::int64_t rows) {
  return to_handles(to_torch(row).repeat({rows, 1}).unbind());
}

std::vector<double> to_doubles(const TensorHandle& x) {
  const at::Tensor host = to_torch(x).detach().to(at::kCPU, at::kDouble).contiguous();
  const auto* data = host.const_data_ptr<double>();
  return {data, data + host.numel()};
}

TensorHandle detach(const TensorHandle& x) { return to_torch(x).detach(); }

TensorHandle to_host(const TensorHandle& x) { return to_torch(x).cpu().contiguous(); }

bool are_the_same_values(const TensorHandle& a, const TensorHandle& b) {
  const at::Tensor first = to_torch(a);
  const at::Tensor second = to_torch(b);
  return first.is_alias_of(second) && first.sizes() == second.sizes() &&
         first.strides() == second.strides() && first.data_ptr() == second.data_ptr();
}

// ---- statistics of a tensor

TensorHandle statistics(const TensorHandle& x, const StatisticsCasts& casts) {
  return ops::statistics(to_torch(x), to_casts(casts));
}

void accumulate_statistics(const TensorHandle& x, const StatisticsCasts& casts,
                           const TensorHandle& accumulator) {
  at::Tensor into = to_torch(accumulator);
  ops::accumulate_statistics(to_torch(x), to_casts(casts), into);
}

TensorHandle empty_statistics(std::int64_t casts, DeviceId device) {
  return ops::empty_statistics(casts, to_torch(device));
}

void accumulate_block_ranges(const TensorHandle& x, const BlockRangeOptions& blocks,
                             const TensorHandle& accumulator) {
  at::Tensor into = to_torch(accumulator);
  ops::accumulate_blockwise_dynamic_range(
      to_torch(x), {blocks.size, blocks.dims, blocks.both_orientations}, into);
}

TensorHandle empty_block_ranges(DeviceId device) {
  return ops::empty_block_ranges(to_torch(device));
}

void accumulate_block_cast(const TensorHandle& x, const BlockCast& cast,
                           const TensorHandle& accumulator) {
  at::Tensor into = to_torch(accumulator);
  ops::accumulate_block_cast_statistics(to_torch(x), to_cast(cast), into);
}

void accumulate_what_ifs(const TensorHandle& x, std::span<const ops::WhatIfCast> casts,
                         std::span<const TensorHandle> accumulators) {
  ops::accumulate_what_if_statistics(to_torch(x), casts, to_torch(accumulators));
}

TensorHandle empty_block_casts(DeviceId device) { return ops::empty_block_casts(to_torch(device)); }

TensorHandle attention_statistics(const ops::AttentionScores& scores) {
  return ops::attention_statistics(scores);
}

// ---- scales

TensorHandle current_scale(const TensorHandle& x, FormatId format) {
  return CurrentScalingQuantizer(format).scale_for(to_torch(x));
}

TensorHandle reciprocal(const TensorHandle& x) { return to_torch(x).reciprocal(); }

TensorHandle scale_of(const TensorHandle& scale_inv, std::span<const TensorHandle> candidates) {
  const at::Tensor inverse = to_torch(scale_inv);
  at::Tensor scale = inverse.reciprocal();
  for (const TensorHandle& each : candidates) {
    const at::Tensor candidate = to_torch(each);
    scale = at::where(candidate.reciprocal().eq(inverse), candidate, scale);
  }
  return scale;
}

// ---- casts in blocks

TensorHandle as_matrix(const TensorHandle& x) { return flattened(to_torch(x).detach()); }

TensorHandle transpose(const TensorHandle& matrix) { return to_torch(matrix).t(); }

TensorHandle hadamard_transform(const TensorHandle& matrix, std::uint16_t signs) {
  return ops::hadamard_transform(to_torch(matrix).to(at::kFloat), signs);
}

DefaultCast describe_default_cast(RecipeId recipe, FormatId format, TensorName tensor,
                                  bool columnwise) {
  const auto quantizer = default_quantizer(recipe, format, tensor);
  BlockOptions options = quantizer->options();
  DefaultCast cast{.is_transformed = options.hadamard_signs.has_value()};
  if (columnwise && cast.is_transformed) return cast;
  const bool squares = std::exchange(options.two_dimensional, false);
  options.hadamard_signs.reset();
  if (options == BlockOptions()) {
    cast.what_if = ops::WhatIfCast{quantizer->format(), quantizer->mode(), squares, columnwise};
  }
  return cast;
}

DefaultCopy cast_by_default(const TensorHandle& matrix, RecipeId recipe, FormatId format,
                            TensorName tensor, bool columnwise) {
  const QuantizedTensor quantized =
      default_quantizer(recipe, format, tensor)
          ->quantize(to_torch(matrix), Usage{.rowwise = !columnwise, .columnwise = columnwise});
  const QuantizedData& data = columnwise ? quantized.columnwise : quantized.rowwise;
  return {
      .cast = {{data.codes, data.scale_inv, data.tensor_scale}, quantized.format, quantized.mode},
      .hadamard_signs = quantized.blocks.hadamard_signs};
}

TensorHandle block_errors(const TensorHandle& x, const BlockCast& cast) {
  return ops::block_cast_errors(to_torch(x), to_cast(cast));
}

TensorHandle scale_bins(const TensorHandle& scale_inv) {
  constexpr std::int64_t kExponents = 0xFF;
  const at::Tensor scales = to_torch(scale_inv).contiguous();
  if (scales.scalar_type() == at::kByte) return scales.to(at::kLong);
  const at::Tensor bits = scales.view(at::kInt);
  return bits.bitwise_right_shift(FP32::kMantissaBits).bitwise_and(kExponents).to(at::kLong);
}

TensorHandle copies_difference(const BlockCast& rowwise, const BlockCast& columnwise,
                               std::optional<std::uint16_t> hadamard_signs) {
  return ops::block_copies_difference(to_cast(rowwise), to_cast(columnwise), hadamard_signs);
}

// ---- histograms

TensorHandle empty_histogram(Bins bins, DeviceId device) {
  return bins == Bins::codes ? ops::empty_code_histogram(to_torch(device))
                             : ops::empty_exponent_histogram(to_torch(device));
}

void count_values(Bins bins, const TensorHandle& x, const TensorHandle& counts) {
  at::Tensor into = to_torch(counts);
  if (bins == Bins::codes) {
    ops::code_histogram(to_torch(x), into);
  } else {
    ops::exponent_histogram(to_torch(x), into);
  }
}

// ---- comparisons of ranks

TensorHandle digest(const TensorHandle& x) { return ops::compute_digest(to_torch(x)); }

TensorHandle digest_of_scale(const TensorHandle& scale) {
  const at::NoGradGuard no_grad;
  const at::Tensor x = to_torch(scale);
  if (x.numel() != 1 || x.scalar_type() != at::kFloat) return ops::compute_digest(x);
  const at::Tensor bits = x.detach().reshape({}).view(at::kInt).to(at::kLong);
  return at::stack({bits, at::zeros_like(bits)});
}

TensorHandle append_digest(const TensorHandle& known, const TensorHandle& next) {
  constexpr std::int64_t kOdd = 0x9E3779B1;
  const at::Tensor before = to_torch(known);
  return before * kOdd + to_torch(next).to(before.device());
}

TensorHandle digests_of_parts(const TensorHandle& x, std::int64_t parts) {
  std::vector<at::Tensor> digests;
  for (const at::Tensor& part : to_torch(x).reshape({parts, -1}).unbind()) {
    digests.push_back(ops::compute_digest(part));
  }
  return at::stack(digests);
}

TensorHandle collective_sums(const TensorHandle& x, CollectiveKind kind, std::int64_t first,
                             std::int64_t whole) {
  return ops::collective_sums(to_torch(x), kind, first, whole);
}

TensorHandle exchange_words(const TensorHandle& rows, std::span<const std::int64_t> counts,
                            std::int64_t rank, bool received) {
  return ops::exchange_words({to_torch(rows), counts, rank, received});
}

TensorHandle in_parts(const TensorHandle& x, std::int64_t parts) {
  return to_torch(x).reshape({parts, -1});
}

// ---- samples

TensorHandle take(const TensorHandle& x, std::span<const std::int64_t> places) {
  return to_torch(x).detach().take(to_torch(copy_to_device(places, x.device())));
}

void put(const TensorHandle& x, std::span<const std::int64_t> places, const TensorHandle& values) {
  to_torch(x).index_copy_(0, to_torch(copy_to_device(places, x.device())), to_torch(values));
}

TensorHandle add(const TensorHandle& indices, std::int64_t offset) {
  return to_torch(indices) + offset;
}

TensorHandle select(const TensorHandle& matrix, std::int64_t dimension,
                    const TensorHandle& indices) {
  const at::Tensor chosen = at::index_select(to_torch(matrix), dimension, to_torch(indices));
  return dimension == 0 ? chosen : chosen.t().contiguous();
}

TensorHandle exact_product(const TensorHandle& rows, const TensorHandle& columns,
                           const TensorHandle& bias, const TensorHandle& indices_of_columns) {
  at::Tensor exact = at::mm(to_torch(rows).to(at::kDouble), to_torch(columns).to(at::kDouble).t());
  if (bias.defined()) {
    exact.add_(at::index_select(to_torch(bias), 0, to_torch(indices_of_columns)).to(at::kDouble));
  }
  return exact.contiguous();
}

TensorHandle crossings(const TensorHandle& matrix, const TensorHandle& rows,
                       const TensorHandle& columns) {
  return at::index_select(at::index_select(to_torch(matrix), 0, to_torch(rows)), 1,
                          to_torch(columns))
      .to(at::kDouble)
      .contiguous();
}

TensorHandle join_as_doubles(std::span<const TensorHandle> vectors) {
  std::vector<at::Tensor> parts;
  for (const TensorHandle& each : vectors)
    parts.push_back(to_torch(each).to(at::kCPU, at::kDouble));
  return at::cat(parts);
}

}  // namespace telens::tensor_ops

namespace telens {

NoGradScope::NoGradScope() : before_(at::GradMode::is_enabled()) {
  at::GradMode::set_enabled(false);
}
NoGradScope::~NoGradScope() { at::GradMode::set_enabled(before_); }

struct GateScope::Impl {
  ops::GateScope scope;
};
GateScope::GateScope(const std::int64_t* word) : impl_(new Impl{ops::GateScope(word)}) {}
GateScope::~GateScope() = default;

void MutationGuard::add(const ObservedOperand& operand) {
  if (!operand.defined()) return;
  if (!operand.is_quantized()) return add(operand.plain());
  for (const bool columnwise : {false, true}) {
    const QuantizedCodes data = operand.codes(columnwise);
    add(data.codes);
    add(data.scale_inv);
    add(data.tensor_scale);
  }
}

}  // namespace telens
