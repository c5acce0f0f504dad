#include "features/block_telemetry/block_telemetry_options.h"

#include <fmt/format.h>

#include "hooks/statistics/block_sums.h"

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
      .summary = "what a recipe with a scale a block does to single blocks",
      .doc =
          "For recipes with a scale a block: compares a tensor with the codes that its GEMMs\n"
          "get, block by block, and records of the rowwise copy and, with _columnwise behind the\n"
          "name, of the columnwise one\n"
          "  zero_blocks%            blocks of nothing but zeros\n"
          "  smallest_scale_blocks%  other blocks whose scale is the smallest of its format, so\n"
          "                          that their values are too small for it (FP32: a subnormal)\n"
          "  largest_scale_blocks%   blocks whose scale is the largest finite one; where the\n"
          "                          tensor has a scale too, the block with its amax always is "
          "one\n"
          "  block_underflows%_max, block_underflows%_mean   over the blocks: the share of a "
          "block's\n"
          "                          elements that became zero\n"
          "  block_saturated%_max, block_saturated%_mean     the share that the cast clipped\n"
          "and of both copies together, which stand for the same tensor,\n"
          "  copies_differ%              elements that they give different values\n"
          "  copies_relative_difference  mean of |a - b| / max(|a|, |b|), 0 where they agree\n"
          "The run file gets, besides, how often each scale occurs (scale_histogram_e8m0, "
          "..._e4m3,\n"
          "..._fp32) and the k worst blocks by block_underflows% and by block_mse with their "
          "places,\n"
          "which `telens blocks` prints. Micro-batches count together, of a weight the first. All "
          "of\n"
          "it is of each rank alone. A copy that went through a random Hadamard transform is\n"
          "compared with the transformed tensor.",
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
                      .doc = "how many of the worst blocks are kept, of each copy and measure",
                      .validate = validate_k}},
      .parse = parse_options,
      // Not .recorded: the size depends on the histograms and blocks, which depend on the recipe.
  };
}

}  // namespace telens::features
