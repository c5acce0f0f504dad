#include "features/collective_check/collective_check_options.h"

namespace telens::features {
namespace {

constexpr std::string_view kGradients = "gradients";

config::OptionsPtr parse_options(const config::Value& parameters, config::ErrorList&) {
  return config::make_options(CollectiveCheckOptions{
      .timeout = std::chrono::seconds(parameters.find("timeout")->as_integer()),
      .gradients = parameters.find(kGradients)->as_bool()});
}

}  // namespace

config::FeatureDescription collective_check_description() {
  return {
      .feature_namespace = std::string(config::kTelensNamespace),
      .name = "CollectiveCheck",
      .summary = "verifies the results of collectives against the data that ranks sent",
      .doc =
          "Observes the collectives of layers that are divided over ranks (gathers of operands,\n"
          "sums of outputs and dgrads, exchanges of expert rows and of heads, transfers of ring\n"
          "attention), the reductions of amaxes, and collectives passed to\n"
          "debug.check_collective(). Compares their results with the sent data at the end of an\n"
          "iteration. Records per rank:\n"
          "  collectives_wrong   collectives whose result does not match: a gather, all-to-all\n"
          "                      or transfer differs in a bit; the total or one of 8 elements of\n"
          "                      a sum or maximum differs by more than rounding allows; or the\n"
          "                      ranks of a group ran different collectives\n"
          "  nonfinite_lost      NaN and infinities that a rank sent, minus those in the result\n"
          "                      (gloo's maximum of 1 and NaN is 1)\n"
          "They are recorded under the last layer and tensor before the collective on this rank,\n"
          "or under the name that the program passed. For a model passed to\n"
          "debug.infer_and_assign_layer_names, also records:\n"
          "  gradient_differs    1 if the gradient of a parameter, as received by the first\n"
          "                      optimizer of the iteration, differs from the majority of the\n"
          "                      ranks with the same parameter or part of it: it was not\n"
          "                      reduced, or over the wrong group. Otherwise 0\n"
          "A warning names the first mismatch. Without an optimizer of torch, gradients must\n"
          "exist at step(). Set `gradients: False` for optimizers that keep a part of them on\n"
          "each rank.",
      .example =
          "CollectiveCheck:\n"
          "  enabled: True\n"
          "  freq: 100\n",
      .parameters = {{.name = std::string(kGradients),
                      .type = config::ParameterType::boolean,
                      .default_value = CollectiveCheckOptions().gradients,
                      .doc = "compares gradients of parameters"},
                     timeout_parameter()},
      .parse = parse_options,
      // Not .recorded: the recorded data depends on the parallelism.
      .attached = "only for collectives passed to debug.check_collective()",
  };
}

}  // namespace telens::features
