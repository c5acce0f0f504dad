#include "core/modules/linear/linear.h"

#include <utility>

namespace telens {

Linear::Linear(LinearOptions options) : options_(std::move(options)), operation_(options_.name) {
  if (options_.in_features < 1 || options_.out_features < 1) {
    raise<UsageError>("Linear: in_features is {} and out_features {}; expected at least 1",
                      options_.in_features, options_.out_features);
  }
  resolve_split("Linear", options_.parameters_split, options_.out_features);
  LinearParallel parallel = linear_parallel("Linear", options_.parameters);
  parallel.request_overlap("Linear", options_.overlap, options_.parameters);
  operation_.set_parallel(parallel);
  parameters_.make(
      own_parameters("Linear",
                     {.in_features = options_.in_features,
                      .out_features = options_.out_features,
                      .bias = options_.bias,
                      .split = options_.parameters_split},
                     parallel),
      options_.parameters,
      [&](std::string name, Weight& slot, at::Tensor value) {
        place(name, parallel.weight_placement());
        register_weight(std::move(name), slot, std::move(value));
      },
      [&](std::string name, at::Tensor& slot, at::Tensor value) {
        place(name, parallel.bias_placement());
        register_slot(std::move(name), slot, std::move(value));
      });
}

Outputs Linear::forward(const LinearInputs& inputs) {
  const LinearCall call{.is_first_microbatch = inputs.is_first_microbatch,
                        .fp8_output = inputs.fp8_output,
                        .fp8_grad = inputs.fp8_grad,
                        .accumulates_wgrad = options_.parameters.fuse_wgrad_accumulation,
                        .delays_wgrad = options_.parameters.delay_wgrad_compute,
                        .training = is_training()};
  if (options_.return_bias) {
    return {operation_(inputs.inp, parameters_.weight(), {}, call), parameters_.bias()};
  }
  return {operation_(inputs.inp, parameters_.weight(), parameters_.bias(), call)};
}

at::Tensor Linear::extra_state() const { return operation_.quantization().extra_state(); }

void Linear::load_extra_state(const at::Tensor& bytes, const std::string& key) {
  operation_.quantization().set_extra_state(bytes, key);
}

void Linear::set_debug_name(const std::string& name) { operation_.hooks().set_name(name); }

}  // namespace telens
