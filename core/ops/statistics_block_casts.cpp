#include "core/ops/statistics_block_casts.h"

#include <torch/library.h>

#include <optional>

#include "core/ops/block_quantize_checks.h"
#include "core/ops/device_constants.h"
#include "core/ops/dispatcher.h"
#include "core/ops/optional_tensor.h"
#include "core/ops/statistics.h"
#include "core/ops/statistics_checks.h"
#include "core/ops/statistics_layout.h"

namespace telens::ops {
namespace {

constexpr const char* kBlockCasts = "accumulate_block_cast_statistics";

void block_cast_statistics_meta(const at::Tensor& x, const at::Tensor& codes,
                                const at::Tensor& scale_inv,
                                const std::optional<at::Tensor>& tensor_scale, std::int64_t format,
                                std::int64_t mode, at::Tensor& accumulator) {
  check_block_cast_statistics(x, {codes, scale_inv, tensor_scale.value_or(at::Tensor())}, format,
                              mode, accumulator);
}

}  // namespace

FormatId check_block_cast(const char* operation, const at::Tensor& x, const BlockCodes& codes,
                          std::int64_t format, std::int64_t mode) {
  const FormatId input = check_matrix(operation, x);
  const BlockCodesFormats formats = check_block_codes(operation, codes, format, mode);
  const std::int64_t columns =
      rounded_up_quotient(x.size(1), scheme(formats.mode).codes_per_byte());
  if (codes.codes.size(0) != x.size(0) || codes.codes.size(1) != columns ||
      codes.codes.device() != x.device()) {
    raise<ShapeError>(
        "{}: codes have shape {} on {} for x of shape {} on {}; expected [{}, {}] there: the "
        "codes' own matrix, transposed for a columnwise copy",
        operation, c10::str(codes.codes.sizes()), codes.codes.device().str(), c10::str(x.sizes()),
        x.device().str(), x.size(0), columns);
  }
  return input;
}

FormatId check_block_cast_statistics(const at::Tensor& x, const BlockCodes& codes,
                                     std::int64_t format, std::int64_t mode,
                                     const at::Tensor& accumulator) {
  const FormatId input = check_block_cast(kBlockCasts, x, codes, format, mode);
  check_accumulator(kBlockCasts, x, accumulator, kCastSumsWords);
  return input;
}

void accumulate_block_cast_statistics(const at::Tensor& x, const BlockCast& cast,
                                      at::Tensor& accumulator) {
  static const auto op = find_operator<decltype(block_cast_statistics_meta)>(
      "telens::accumulate_block_cast_statistics");
  const auto& [codes, scale_inv, tensor_scale] = cast.codes;
  op.call(x, codes, scale_inv, if_defined(tensor_scale), static_cast<std::int64_t>(cast.format),
          static_cast<std::int64_t>(cast.mode), accumulator);
}

at::Tensor empty_block_casts(const at::Device& device) {
  return constants_on(device, get_words(CastSums{}));
}

}  // namespace telens::ops

TORCH_LIBRARY_IMPL(telens, Meta, library) {
  library.impl("accumulate_block_cast_statistics",
               TORCH_FN(telens::ops::block_cast_statistics_meta));
}
