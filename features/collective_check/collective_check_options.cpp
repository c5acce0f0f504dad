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
      .summary = "whether what came out of collectives is what the ranks sent",
      .doc =
          "Looks at the collectives of divided layers (gathers of operands, sums of outputs and\n"
          "dgrads, exchanges of experts' rows and of heads, what travels round the ring of\n"
          "attention), at the reductions of amaxes, and at those that a program hands to\n"
          "debug.check_collective(), and compares at the end of an iteration what each rank sent\n"
          "with what came out. Records of each rank\n"
          "  collectives_wrong   collectives of which other values came out than the ranks sent: "
          "a\n"
          "                      gather, all-to-all or transfer differs in a bit; of a sum or "
          "maximum one\n"
          "                      of 8 elements, or the total, by more than the rounding of a sum\n"
          "                      may be; or ranks of one group were in different collectives\n"
          "  nonfinite_lost      NaN and infinities that a rank sent, less those that came out\n"
          "                      (gloo's maximum of 1 and NaN is 1)\n"
          "under the layer and tensor that this rank saw last before, or under the program's "
          "name,\n"
          "and, of a model that debug.infer_and_assign_layer_names was given,\n"
          "  gradient_differs    1 where a parameter's gradient, as the first optimizer of the\n"
          "                      iteration gets it, differs from what most ranks have that hold "
          "the\n"
          "                      same parameter, or the same part of it; else 0: what was not\n"
          "                      reduced, or over another group\n"
          "A warning names the first. Without an optimizer of torch gradients have to be there at\n"
          "step(). `gradients: False` is for optimizers that leave each rank a part of them.",
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
  };
}

}  // namespace telens::features
