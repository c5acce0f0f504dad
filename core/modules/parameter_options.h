// How a module makes its parameters: dtype, device, initial values.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include <functional>
#include <optional>

namespace telens {

struct ParameterOptions {
  // Fills a fresh tensor in place, such as torch's init functions.
  using InitMethod = std::function<void(at::Tensor)>;

  std::optional<at::ScalarType> params_dtype;  // default: torch's default dtype
  std::optional<at::Device> device;            // default: cuda if there is one, else cpu
  InitMethod init_method = {};                 // default: normal(0, 0.023), Transformer Engine's

  // Where a struct of options describes itself. Modules without random weights describe the
  // placement alone.
  template <typename Owner, typename Visitor>
  static void describe_placement_in(Visitor&& visit, ParameterOptions Owner::*member) {
    visit.nested("params_dtype", member, &ParameterOptions::params_dtype,
                 "dtype of the parameters; default: torch's default dtype");
    visit.nested("device", member, &ParameterOptions::device,
                 "where the parameters are made; default: cuda if there is one, else cpu");
  }
  template <typename Owner, typename Visitor>
  static void describe_in(Visitor&& visit, ParameterOptions Owner::*member) {
    describe_placement_in<Owner>(visit, member);
    visit.nested("init_method", member, &ParameterOptions::init_method,
                 "fills a weight in place; default: normal with mean 0 and deviation 0.023");
  }

  // A weight, filled by init_method.
  at::Tensor make_weight(at::IntArrayRef sizes) const;
  // A tensor of one value: biases (0), norm weights (1).
  at::Tensor make_constant(at::IntArrayRef sizes, double value) const;
};

}  // namespace telens
