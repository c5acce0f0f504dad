#include "features/gemm_error/gemm_error_options.h"

namespace telens::features {
namespace {

constexpr std::string_view kSamples = "samples";
constexpr std::int64_t kMostSamples = 1 << 20;

void validate_samples(const config::Value& value, config::ErrorList& errors) {
  const std::int64_t samples = value.as_integer();
  if (samples < 1 || samples > kMostSamples) {
    errors.add(value.location(), "'{}' must be from 1 to {}, not {}", kSamples, kMostSamples,
               samples);
  }
}

config::OptionsPtr parse_options(const config::Value& parameters, config::ErrorList&) {
  return config::make_options(GemmErrorOptions{parameters.find(kSamples)->as_integer()});
}

}  // namespace

config::FeatureDescription gemm_error_description() {
  return {
      .feature_namespace = std::string(config::kTelensNamespace),
      .name = "GemmError",
      .summary = "error of GEMMs against FP64, on a sample of the outputs",
      .doc =
          "Recomputes a sample of the outputs of the selected GEMMs in FP64: the elements at the\n"
          "crossings of random rows and random columns. Reads the high-precision operands of the\n"
          "layer, before any cast or change. Records\n"
          "  gemm_relative_error  |out - exact| / |exact|, norms over the sample\n"
          "  gemm_mean_error      mean of out - exact, divided by the mean of |exact|: a bias\n"
          "  gemm_cosine          cosine of the angle between out and exact\n"
          "Micro-batches are merged. The sample depends only on layer, GEMM and iteration. If a\n"
          "weight is stored in FP8, its stored values count as exact. If the rows of a product\n"
          "are gathered from all ranks (sequence_parallel), each rank measures its own rows. A\n"
          "wgrad that sums over rows of all ranks is measured if the rows arrive in high\n"
          "precision. If they arrive as codes, or if the weight is sharded, the GEMM is skipped\n"
          "with a warning.",
      .example =
          "GemmError:\n"
          "  enabled: True\n"
          "  gemms: [fprop, dgrad, wgrad]\n"
          "  freq: 100\n",
      .selects = config::Selects::gemms,
      .parameters = {{.name = std::string(kSamples),
                      .type = config::ParameterType::integer,
                      .default_value = GemmErrorOptions().samples,
                      .doc = "approximate number of elements to recompute per output",
                      .validate = validate_samples}},
      .parse = parse_options,
      .recorded =
          [](const config::Selection&) {
            return std::vector<std::string>{std::string(kGemmRelativeError),
                                            std::string(kGemmMeanError), std::string(kGemmCosine)};
          },
      .attached = config::kNeedsFp8Modules,
  };
}

}  // namespace telens::features
