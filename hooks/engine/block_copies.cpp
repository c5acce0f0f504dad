#include "hooks/engine/block_copies.h"

#include <c10/util/accumulate.h>
#include <fmt/format.h>

#include <memory>
#include <utility>

#include "core/ops/block_quantize_checks.h"
#include "core/quantization/quantized_tensor.h"
#include "core/quantization/recipe.h"
#include "hooks/engine/block_quantizers.h"

namespace telens::features {
namespace {

// The copy of a running recipe that a cast asks about; nullptr where another one runs.
const QuantizedTensor* running_copy(const InspectTensorCall& call, const CastRequest& cast) {
  const QuantizedTensor* copy = quantized_or_null(cast.columnwise ? call.columnwise : call.rowwise);
  return copy != nullptr && scheme(copy->mode).recipe == cast.recipe ? copy : nullptr;
}

// True if the codes of the copy are those of a matrix [rows, columns].
bool fits(const QuantizedTensor& copy, bool columnwise, std::int64_t rows, std::int64_t columns) {
  const at::Tensor& codes = columnwise ? copy.columnwise.codes : copy.rowwise.codes;
  if (!codes.defined() || codes.dim() != 2) return false;
  if (columnwise) std::swap(rows, columns);
  const std::int64_t codes_per_byte = scheme(copy.mode).codes_per_byte();
  return codes.size(0) == rows &&
         codes.size(1) == ops::rounded_up_quotient(columns, codes_per_byte);
}

// The quantizer of a recipe that does not run. It is for observers: it draws no random numbers.
std::shared_ptr<BlockQuantizer> what_if_quantizer(const CastRequest& cast, TensorName tensor) {
  return default_block_quantizer(cast.recipe, cast.format, get_role(tensor));
}

BlockCopy get_copy(const QuantizedTensor& quantized, bool columnwise, const at::Tensor& matrix) {
  const QuantizedData& data = columnwise ? quantized.columnwise : quantized.rowwise;
  BlockCopy copy{
      matrix, {{data.codes, data.scale_inv, data.tensor_scale}, quantized.format, quantized.mode}};
  if (!columnwise) return copy;
  // The transform is orthogonal: in FP32 the squared error is the same before it is undone and
  // after.
  if (const auto signs = quantized.blocks.hadamard_signs) {
    copy.x = ops::hadamard_transform(matrix.to(at::kFloat), *signs);
  }
  copy.x = copy.x.t();
  return copy;
}

// The cast as the one read for all what-if casts takes it; nullopt where it must be made.
std::optional<ops::WhatIfCast> without_codes(const BlockQuantizer& quantizer, bool columnwise) {
  BlockOptions options = quantizer.options();
  if (columnwise && options.hadamard_signs) return std::nullopt;
  const bool squares = std::exchange(options.two_dimensional, false);
  options.hadamard_signs.reset();
  if (options != BlockOptions()) return std::nullopt;
  return ops::WhatIfCast{quantizer.format(), quantizer.mode(), squares, columnwise};
}

}  // namespace

std::vector<BlockCopy> block_copies(const InspectTensorCall& call, const at::Tensor& x,
                                    std::span<const CastRequest> casts) {
  std::vector<BlockCopy> copies;
  if (casts.empty() || x.numel() == 0) return copies;
  const at::Tensor matrix = flattened(x.detach());
  for (const CastRequest& cast : casts) {
    if (const QuantizedTensor* running = running_copy(call, cast)) {
      copies.push_back(get_copy(*running, cast.columnwise, matrix));
      continue;
    }
    const auto quantizer = what_if_quantizer(cast, call.tensor_name);
    if (const auto what_if = without_codes(*quantizer, cast.columnwise)) {
      copies.push_back({.x = matrix, .what_if = what_if});
      continue;
    }
    const Usage usage{.rowwise = !cast.columnwise, .columnwise = cast.columnwise};
    copies.push_back(get_copy(quantizer->quantize(matrix, usage), cast.columnwise, matrix));
  }
  return copies;
}

void accumulate_block_casts(std::span<const BlockCopy> copies, std::span<at::Tensor> accumulators) {
  std::vector<ops::WhatIfCast> casts;
  std::vector<at::Tensor> of_casts;
  at::Tensor x;  // the same for all of them
  for (std::size_t i = 0; i < copies.size(); ++i) {
    const BlockCopy& copy = copies[i];
    if (copy.what_if) {
      casts.push_back(*copy.what_if);
      of_casts.push_back(accumulators[i]);
      x = copy.x;
    } else {
      ops::accumulate_block_cast_statistics(copy.x, copy.cast, accumulators[i]);
    }
  }
  if (!casts.empty()) ops::accumulate_what_if_statistics(x, casts, of_casts);
}

std::optional<std::string> reason_against_copy(const InspectTensorCall& call,
                                               const CastRequest& cast, at::IntArrayRef sizes) {
  if (sizes.empty()) return "a tensor without dimensions has no blocks";
  const std::int64_t numel = c10::multiply_integers(sizes);
  if (numel == 0) return std::nullopt;
  const std::int64_t rows = numel / sizes.back();
  const QuantizedTensor* running = running_copy(call, cast);
  const auto transformed = [&] {
    return (running != nullptr
                ? running->blocks.hadamard_signs
                : what_if_quantizer(cast, call.tensor_name)->options().hadamard_signs)
        .has_value();
  };
  if (cast.columnwise && rows % ops::kHadamardSize != 0 && transformed()) {
    return fmt::format(
        "its rows are not divisible by {}, so the Hadamard transform of that copy mixes them with "
        "rows of zeros that are not the tensor's",
        ops::kHadamardSize);
  }
  if (running != nullptr && !fits(*running, cast.columnwise, rows, sizes.back())) {
    return "the codes are of another shape";
  }
  return std::nullopt;
}

}  // namespace telens::features
