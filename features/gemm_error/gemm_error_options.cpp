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
          "Recomputes output elements of the chosen GEMMs in FP64 from the high-precision\n"
          "operands (those of the layer, before any cast or change), where random rows and\n"
          "random columns cross, and records of what the GEMM gave there\n"
          "  gemm_relative_error  |out - exact| / |exact|, the norms over the sample\n"
          "  gemm_mean_error      mean of out - exact, over the mean of |exact|: a bias\n"
          "  gemm_cosine          of the angle between out and exact\n"
          "Micro-batches count together. The sample depends on layer, GEMM and iteration alone.\n"
          "Of a weight that is stored in FP8 the stored values are taken for exact.\n"
          "Of a product whose rows come from all ranks (sequence_parallel) each rank takes its\n"
          "own rows. A wgrad that adds up rows of all ranks is measured where they come in high\n"
          "precision; where they come as codes, and of a weight that is stored in parts, a\n"
          "warning says that it is not.",
      .example =
          "GemmError:\n"
          "  enabled: True\n"
          "  gemms: [fprop, dgrad, wgrad]\n"
          "  freq: 100\n",
      .selects = config::Selects::gemms,
      .parameters = {{.name = std::string(kSamples),
                      .type = config::ParameterType::integer,
                      .default_value = GemmErrorOptions().samples,
                      .doc = "how many elements of each output are recomputed, about",
                      .validate = validate_samples}},
      .parse = parse_options,
      .recorded =
          [](const config::Selection&) {
            return std::vector<std::string>{std::string(kGemmRelativeError),
                                            std::string(kGemmMeanError), std::string(kGemmCosine)};
          },
  };
}

}  // namespace telens::features
