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
              "seconds that a rank waits for the others; then it goes on alone, and says which "
              "rank did not come",
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
      .summary = "whether ranks that have to have the same bits have them",
      .doc =
          "Compares ranks at the end of an iteration, by digests over bits (-0 is not 0, a NaN is\n"
          "itself), and records of each tensor and rank 1 where it differs from what most have, "
          "else 0:\n"
          "  weight_differs        a weight: on all ranks that have it; under tensor parallelism\n"
          "                        on those with the same part\n"
          "  scale_differs         the scale of a weight, likewise; that of an activation or a\n"
          "                        gradient on ranks that reduce its amax together or have it\n"
          "                        whole (fp8_group under delayed scaling, tp_group else)\n"
          "  replica_differs       an activation or gradient that each rank of tp_group has "
          "whole:\n"
          "                        other bits come of other inputs, or of other targets\n"
          "  amax_history_differs  delayed scaling's histories, on the ranks of fp8_group\n"
          "A warning names the first layer, tensor and rank. With `tensors: [weight]` the norm\n"
          "weights, biases and embeddings of a model that debug.infer_and_assign_layer_names was\n"
          "given are compared too, and with a model's name its amax histories. Experts that "
          "differ\n"
          "from rank to rank do not belong into the section, unless their parameters have\n"
          "`allreduce = False`, which leaves them out. The ranks send each other 32 bytes a "
          "tensor\n"
          "in one collective a step, for all of these features. A rank without the layer has no\n"
          "part in it.",
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
