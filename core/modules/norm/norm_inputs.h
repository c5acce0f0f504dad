// Options and inputs of LayerNorm and RMSNorm.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <vector>

#include "core/modules/shared/parameter_options.h"

namespace telens {

struct NormModuleOptions {
  std::vector<std::int64_t> normalized_shape = {};  // the last sizes of the input
  double eps = 1e-5;
  bool zero_centered_gamma = false;
  ParameterOptions parameters = ParameterOptions();
  std::optional<bool> sequence_parallel = {};  // nullopt if the parameters lack this attribute

  template <typename Visitor>
  static void describe(Visitor&& visit) {
    visit("normalized_shape", &NormModuleOptions::normalized_shape,
          "last sizes of the input: one number or several");
    visit("eps", &NormModuleOptions::eps, "added to the variance");
    visit("zero_centered_gamma", &NormModuleOptions::zero_centered_gamma,
          "the weight starts at 0, and 1 + weight is the factor");
    ParameterOptions::describe_placement_in<NormModuleOptions>(visit,
                                                               &NormModuleOptions::parameters);
    visit("sequence_parallel", &NormModuleOptions::sequence_parallel,
          "the input is this rank's part of a sequence: marks the parameters with an attribute "
          "of this name, for the code that sums their gradients over the group");
  }
};

struct NormInputs {
  at::Tensor inp;  // [..., *normalized_shape]

  template <typename Visitor>
  static void describe(Visitor&& visit) {
    visit("inp", &NormInputs::inp, "[..., *normalized_shape]");
  }
};

}  // namespace telens
