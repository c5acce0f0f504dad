#include "features/block_telemetry/block_telemetry_options.h"

#include <fmt/format.h>

#include "hooks/statistics/accumulator.h"

namespace telens::features {
namespace {

constexpr std::string_view kK = "k";
constexpr std::int64_t kMostBlocks = 1024;

void validate_k(const config::Value& value, config::ErrorList& errors) {
  const std::int64_t k = value.as_integer();
  if (k < 0 || k > kMostBlocks) {
    errors.add(value.location(), "'{}' must be from 0 to {}, not {}", kK, kMostBlocks, k);
  }
}

config::OptionsPtr parse_options(const config::Value& parameters, config::ErrorList&) {
  return config::make_options(BlockTelemetryOptions{parameters.find(kK)->as_integer()});
}

}  // namespace

std::string name_of_copy(std::string_view statistic, bool columnwise) {
  return fmt::format("{}{}", statistic, columnwise ? "_columnwise" : "");
}

std::string_view scale_histogram_name(ScalingMode mode) {
  switch (scheme(mode).scale_format) {
    case FormatId::e8m0:
      return "scale_histogram_e8m0";
    case FormatId::e4m3:
      return "scale_histogram_e4m3";
    default:
      return "scale_histogram_fp32";
  }
}

config::FeatureDescription block_telemetry_description() {
  return {
      .feature_namespace = std::string(config::kTelensNamespace),
      .name = "BlockTelemetry",
      .summary = "per-block statistics of block-scaled recipes",
      .doc =
          "For recipes with one scale per block. Compares a tensor with its quantized copies\n"
          "block by block. Records for the rowwise copy, and with the suffix _columnwise for the\n"
          "columnwise copy:\n"
          "  zero_blocks%            blocks that contain only zeros\n"
          "  smallest_scale_blocks%  other blocks with the smallest scale of its format: their\n"
          "                          values are too small for it (FP32: a subnormal)\n"
          "  largest_scale_blocks%   blocks with the largest finite scale; if the tensor also\n"
          "                          has a scale, the block with its amax always counts\n"
          "  block_underflows%_max, block_underflows%_mean   over blocks: the share of the\n"
          "                                                  elements that became zero\n"
          "  block_saturated%_max, block_saturated%_mean     the share that the cast clipped\n"
          "Records for both copies together, since they represent one tensor:\n"
          "  copies_differ%              elements with different values in the copies\n"
          "  copies_relative_difference  mean of |a - b| / max(|a|, |b|), 0 if they are equal\n"
          "The run file also contains the histogram of scales (scale_histogram_e8m0, ..._e4m3,\n"
          "..._fp32) and the k worst blocks by block_underflows% and by block_mse with their\n"
          "positions, which `telens blocks` prints. Micro-batches are merged; of the reads of a\n"
          "weight, only the first counts. Values are not reduced over ranks. A copy after a\n"
          "random Hadamard transform is compared with the transformed tensor.",
      .example =
          "BlockTelemetry:\n"
          "  enabled: True\n"
          "  tensors: [activation, weight, gradient]\n"
          "  k: 16\n"
          "  freq: 100\n",
      .selects = config::Selects::tensors,
      .tensors = config::gemm_input_names(),
      .parameters = {{.name = std::string(kK),
                      .type = config::ParameterType::integer,
                      .default_value = BlockTelemetryOptions().k,
                      .doc = "number of worst blocks to keep, per copy and measure",
                      .validate = validate_k}},
      .parse = parse_options,
      // Not .recorded: the size depends on the histograms and blocks, which depend on the recipe.
      .attached = "only for torchao's layers with block scales",
  };
}

}  // namespace telens::features
