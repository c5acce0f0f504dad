#include "features/rank_agreement/rank_agreement_options.h"

#include <fmt/format.h>

#include <algorithm>

namespace telens::features {
namespace {

constexpr std::string_view kTimeout = "timeout";

void validate_timeout(const config::Value& value, config::ErrorList& errors) {
  constexpr std::int64_t kMost = 86400;  // a day
  const std::int64_t seconds = value.as_integer();
  if (seconds < 1 || seconds > kMost) {
    errors.add(value.location(), "'{}' must be from 1 to {} s, not {}", kTimeout, kMost, seconds);
  }
}

config::OptionsPtr parse_options(const config::Value& parameters, config::ErrorList&) {
  return config::make_options(RankAgreementOptions{
      .timeout = std::chrono::seconds(parameters.find(kTimeout)->as_integer())});
}

}  // namespace

config::Parameter timeout_parameter() {
  return {.name = std::string(kTimeout),
          .type = config::ParameterType::integer,
          .default_value = kDefaultTimeout,
          .doc =
              "seconds that a rank waits for the others; then it continues without them and "
              "reports the missing rank",
          .validate = validate_timeout};
}

std::string differs_name(std::string_view what) {
  std::string name = fmt::format("{}_differs", what);
  std::ranges::replace(name, ' ', '_');
  return name;
}

config::FeatureDescription rank_agreement_description() {
  return {
      .feature_namespace = std::string(config::kTelensNamespace),
      .name = "RankAgreement",
      .summary = "verifies that ranks have equal bits if they should",
      .doc =
          "Compares ranks at the end of an iteration by digests over bits (-0 differs from 0; a\n"
          "NaN equals itself). Records for each tensor and rank 1 if it differs from the\n"
          "majority, otherwise 0:\n"
          "  weight_differs        a weight, over all ranks that have it; under tensor\n"
          "                        parallelism, over the ranks with the same part\n"
          "  scale_differs         the scale of a weight, over the same ranks; the scale of an\n"
          "                        activation or gradient, over ranks that reduce its amax\n"
          "                        together or have it whole (fp8_group under delayed scaling,\n"
          "                        otherwise tp_group)\n"
          "  replica_differs       an activation or gradient that each rank of tp_group has\n"
          "                        whole: the inputs or targets differ\n"
          "  amax_history_differs  the histories of delayed scaling, over the ranks of fp8_group\n"
          "A warning names the first layer, tensor and rank. With `tensors: [weight]`, the norm\n"
          "weights, biases and embeddings of a model passed to\n"
          "debug.infer_and_assign_layer_names are also compared; with a model name, also its\n"
          "amax histories. Exclude experts that differ between ranks from the section, or set\n"
          "`allreduce = False` on their parameters, which excludes them. Ranks exchange 32 bytes\n"
          "per tensor in one collective per step, which all of these features share. A rank\n"
          "without the layer does not take part.",
      .example =
          "RankAgreement:\n"
          "  enabled: True\n"
          "  tensors: [activation, weight, gradient]\n"
          "  freq: 100\n",
      .selects = config::Selects::tensors,
      .tensors = config::gemm_input_names(),
      .parameters = {timeout_parameter()},
      .parse = parse_options,
      // Not .recorded: the compared items depend on recipe and parallelism.
  };
}

}  // namespace telens::features
