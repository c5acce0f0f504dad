#include "hooks/engine/tensor_accumulators.h"

#include <fmt/format.h>

#include <algorithm>

namespace telens::features {
namespace {

// The quantized copy for the tensor's first GEMM, or for its second GEMM if the first is
// unquantized.
struct ShownCopy {
  const ObservedOperand* operand = nullptr;  // nullptr if neither is quantized
  bool modified = false;                     // by a feature
};

ShownCopy shown_copy(const ObservedTensor& call) {
  if (call.rowwise.is_quantized()) return {&call.rowwise, call.rowwise_modified};
  if (call.columnwise.is_quantized()) return {&call.columnwise, call.columnwise_modified};
  return {};
}

// Returns the copy that the running recipe created; nullptr if the cast belongs to another recipe.
const ObservedOperand* running_copy(const ObservedTensor& call, const CastRequest& cast) {
  const ObservedOperand& copy = cast.columnwise ? call.columnwise : call.rowwise;
  const bool is_of_recipe = copy.is_quantized() && scheme(copy.mode()).recipe == cast.recipe;
  return is_of_recipe ? &copy : nullptr;
}

// Returns true if the codes have the shape of a matrix [rows, columns].
bool fits(const ObservedOperand& copy, bool columnwise, std::int64_t rows, std::int64_t columns) {
  const TensorHandle codes = copy.codes(columnwise).codes;
  if (!codes.defined() || codes.dim() != 2) return false;
  if (columnwise) std::swap(rows, columns);
  const std::int64_t codes_per_byte = scheme(copy.mode()).codes_per_byte();
  return codes.size(0) == rows && codes.size(1) == (columns + codes_per_byte - 1) / codes_per_byte;
}

// Returns the copy with the original matrix in the orientation of its codes. The Hadamard transform
// is orthogonal, so the squared error in FP32 does not depend on whether it is undone.
BlockCopy oriented(BlockCopy copy, bool columnwise, const TensorHandle& matrix) {
  copy.x = matrix;
  if (!columnwise) return copy;
  if (copy.hadamard_signs) {
    copy.x = tensor_ops::hadamard_transform(matrix, *copy.hadamard_signs);
  }
  copy.x = tensor_ops::transpose(copy.x);
  return copy;
}

// Adds the statistics of every copy to its accumulator (kCastSumsWords). Hypothetical casts share
// one read.
void accumulate_block_casts(std::span<const BlockCopy> copies,
                            std::span<const TensorHandle> accumulators) {
  std::vector<ops::WhatIfCast> casts;
  std::vector<TensorHandle> of_casts;
  TensorHandle x;  // shared by all hypothetical casts
  for (std::size_t i = 0; i < copies.size(); ++i) {
    const BlockCopy& copy = copies[i];
    if (copy.what_if) {
      casts.push_back(*copy.what_if);
      of_casts.push_back(accumulators[i]);
      x = copy.x;
    } else {
      tensor_ops::accumulate_block_cast(copy.x, copy.cast, accumulators[i]);
    }
  }
  if (!casts.empty()) tensor_ops::accumulate_what_ifs(x, casts, of_casts);
}

}  // namespace

// ---- casts

std::vector<BlockCopy> block_copies(const ObservedTensor& call, const TensorHandle& x,
                                    std::span<const CastRequest> casts) {
  std::vector<BlockCopy> copies;
  if (casts.empty() || x.numel() == 0) return copies;
  const TensorHandle matrix = tensor_ops::as_matrix(x);
  for (const CastRequest& cast : casts) {
    const bool columnwise = cast.columnwise;
    if (const ObservedOperand* running = running_copy(call, cast)) {
      copies.push_back(
          oriented({.cast = {running->codes(columnwise), running->format(), running->mode()},
                    .hadamard_signs = running->blocks().hadamard_signs},
                   columnwise, matrix));
      continue;
    }
    const auto described =
        tensor_ops::describe_default_cast(cast.recipe, cast.format, call.tensor_name, columnwise);
    if (described.what_if) {
      copies.push_back({.x = matrix, .what_if = described.what_if});
      continue;
    }
    tensor_ops::DefaultCopy made =
        tensor_ops::cast_by_default(matrix, cast.recipe, cast.format, call.tensor_name, columnwise);
    copies.push_back(oriented({.cast = std::move(made.cast), .hadamard_signs = made.hadamard_signs},
                              columnwise, matrix));
  }
  return copies;
}

std::optional<std::string> reason_against_copy(const ObservedTensor& call, const CastRequest& cast,
                                               std::span<const std::int64_t> sizes) {
  if (sizes.empty()) return "a tensor without dimensions has no blocks";
  std::int64_t numel = 1;
  for (const std::int64_t size : sizes) numel *= size;
  if (numel == 0) return std::nullopt;
  const std::int64_t rows = numel / sizes.back();
  const ObservedOperand* running = running_copy(call, cast);
  const auto transformed = [&] {
    return running != nullptr
               ? running->blocks().hadamard_signs.has_value()
               : tensor_ops::describe_default_cast(cast.recipe, cast.format, call.tensor_name, true)
                     .is_transformed;
  };
  if (cast.columnwise && rows % kHadamardSize != 0 && transformed()) {
    return fmt::format(
        "its rows are not divisible by {}, so the Hadamard transform of that copy mixes them with "
        "rows of zeros that are not the tensor's",
        kHadamardSize);
  }
  if (running != nullptr && !fits(*running, cast.columnwise, rows, sizes.back())) {
    return "the codes are of another shape";
  }
  return std::nullopt;
}

std::optional<RunningCast> running_cast(const ObservedTensor& call) {
  const ShownCopy shown = shown_copy(call);
  if (shown.operand == nullptr) return std::nullopt;
  const FormatId format = shown.operand->format();
  if (const auto recipe = scheme(shown.operand->mode()).recipe) {
    const ObservedOperand& second = call.columnwise;
    return RunningCast{*recipe, format, call.rowwise.is_quantized() && call.rowwise.has(false),
                       second.is_quantized() && scheme(second.mode()).recipe == recipe &&
                           second.has(/*columnwise=*/true)};
  }
  const bool per_tensor = call.quantizer && call.quantizer->mode == ScalingMode::tensor;
  if (!per_tensor && !shown.modified) return std::nullopt;
  RunningCast running{RecipeId::fp8_current_scaling, format};
  if (per_tensor) {
    running.format = call.quantizer->format;
    if (call.quantizer->known_scale().defined()) running.recipe = RecipeId::fp8_delayed_scaling;
  }
  running.altered = shown.modified || format != running.format;
  running.altered_format = format;
  return running;
}

TensorHandle CastScales::of(const CastRequest& cast) {
  if (cast.altered) return scale_of_copy();
  if (cast.recipe == RecipeId::fp8_delayed_scaling) return call_.quantizer->known_scale();
  if (!call_.quantizer || !call_.quantizer->uses_current_scaling()) return current(cast.format);
  if (!call_.quantizer->amax_group()) return call_.quantizer->scale_for(x_);
  // A scale that was reduced over ranks is read from the copy, because observing must not
  // communicate.
  const ObservedOperand* copy = shown_copy(call_).operand;
  const bool is_of_format = copy != nullptr && copy->format() == cast.format;
  return is_of_format ? scale_of_copy() : current(cast.format);
}

TensorHandle CastScales::current(FormatId format) {
  const auto known = std::ranges::find(current_, format, &std::pair<FormatId, TensorHandle>::first);
  if (known != current_.end()) return known->second;
  return current_.emplace_back(format, tensor_ops::current_scale(x_, format)).second;
}

// Returns the scale of the copy. The copy stores scale_inv, and 1 / scale_inv may differ from the
// scale in the last bit, which would change some codes. Therefore the scale is selected from
// candidates by their reciprocals. The comparison runs on the tensor's device without
// synchronization.
TensorHandle CastScales::scale_of_copy() {
  const ObservedOperand& copy = *shown_copy(call_).operand;
  std::vector<TensorHandle> candidates;
  if (call_.quantizer) {
    TensorHandle known = call_.quantizer->known_scale();
    if (known.defined()) candidates.push_back(std::move(known));
  }
  candidates.push_back(current(copy.format()));
  return tensor_ops::scale_of(copy.codes(/*columnwise=*/!copy.has(false)).scale_inv, candidates);
}

// ---- accumulators

Accumulators Accumulators::empty(const RequestSet& set, DeviceId device) {
  const auto casts = static_cast<std::int64_t>(set.casts().size());
  Accumulators made{tensor_ops::empty_statistics(casts, device)};
  for (std::size_t i = 0; i < set.block_casts().size(); ++i) {
    made.block_casts.push_back(tensor_ops::empty_block_casts(device));
  }
  for (std::size_t i = 0; i < set.blocks().size(); ++i) {
    made.ranges.push_back(tensor_ops::empty_block_ranges(device));
  }
  return made;
}

void Accumulators::add_blocks(const TensorHandle& x, const RequestSet& set,
                              std::span<const BlockCopy> copies, bool both_orientations) {
  accumulate_block_casts(copies, block_casts);
  for (std::size_t i = 0; i < set.blocks().size(); ++i) {
    const BlockShape& shape = set.blocks()[i];
    tensor_ops::accumulate_block_ranges(x, {shape.size, shape.dims, both_orientations}, ranges[i]);
  }
}

void Accumulators::add(const TensorHandle& x, const RequestSet& set,
                       const tensor_ops::StatisticsCasts& casts, std::span<const BlockCopy> copies,
                       bool both_orientations) {
  tensor_ops::accumulate_statistics(x, casts, sums);
  add_blocks(x, set, copies, both_orientations);
}

Accumulators Accumulators::clone() const {
  Accumulators copy{tensor_ops::clone(sums)};
  for (const TensorHandle& each : block_casts) copy.block_casts.push_back(tensor_ops::clone(each));
  for (const TensorHandle& each : ranges) copy.ranges.push_back(tensor_ops::clone(each));
  return copy;
}

}  // namespace telens::features
