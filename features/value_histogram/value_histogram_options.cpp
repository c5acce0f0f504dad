#include "features/value_histogram/value_histogram_options.h"

namespace telens::features {
namespace {

constexpr std::string_view kBins = "bins";
constexpr std::string_view kExponent = "exponent";
constexpr std::string_view kCodes = "codes";

config::OptionsPtr parse_options(const config::Value& parameters, config::ErrorList&) {
  const bool codes = parameters.find(kBins)->as_string() == kCodes;
  return config::make_options(
      ValueHistogramOptions{codes ? HistogramBins::codes : HistogramBins::exponent});
}

}  // namespace

config::FeatureDescription value_histogram_description() {
  return {
      .feature_namespace = std::string(config::kTelensNamespace),
      .name = "ValueHistogram",
      .summary = "histogram of a tensor's values, for `telens whatif`",
      .doc =
          "Counts the elements of the high-precision tensor by exponent and sign, or by code.\n"
          "From a histogram over all codes of a BF16 or FP16 tensor, `telens whatif` computes\n"
          "the exact effect of any per-tensor FP8 recipe; from exponents, it computes bounds.\n"
          "FP32 tensors have too many codes, so their exponents are counted. Histograms are\n"
          "written only to the run file, separately for each rank; `telens whatif` adds them up.\n"
          "A histogram over all codes takes about 20 KB of the run file, and 512 KiB of memory\n"
          "until step().",
      .example =
          "ValueHistogram:\n"
          "  enabled: True\n"
          "  tensors: [activation, weight, gradient]\n"
          "  bins: codes\n"
          "  freq: 100\n",
      .selects = config::Selects::tensors,
      .tensors = config::with_attention(config::all_tensor_names(), /*scores=*/false),
      .parameters = {{.name = std::string(kBins),
                      .type = config::ParameterType::string,
                      .default_value = config::Value(std::string(kExponent)),
                      .doc = "exponent: one bin per exponent and sign, and for zeros, subnormals, "
                             "Inf and NaN; codes: one bin per code (65,536)",
                      .allowed_values = {std::string(kExponent), std::string(kCodes)}}},
      .parse = parse_options,
      // Not .recorded: the size depends on the histograms, whose bins depend on the data.
  };
}

}  // namespace telens::features
