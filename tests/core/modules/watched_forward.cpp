// A program of tests/python/test_files_of_a_forward.py: one FP8 forward of a Linear under a
// listener that inspects every tensor. Callgrind collects what runs in counted_forward().
#include <ATen/ATen.h>

#include <memory>

#include "core/modules/linear/linear.h"
#include "core/quantization/autocast.h"
#include "core/quantization/current_scaling.h"
#include "tests/core/modules/recording_listener.h"

// A global function: callgrind's --toggle-collect finds it by this name.
[[gnu::noinline]] at::Tensor counted_forward(telens::Linear& linear, const at::Tensor& x) {
  return linear.forward(x);
}

int main() {
  telens::LinearOptions options;
  options.in_features = 32;
  options.out_features = 16;
  options.name = "fc";
  options.parameters.params_dtype = at::kBFloat16;
  options.parameters.device = at::kCPU;
  telens::Linear linear(options);
  const at::Tensor x = at::ones({48, 32}, at::kBFloat16).requires_grad_();

  telens::RoutingPlan plan;
  plan.inspect = 0b111111;
  plan.postquantize = (1U << (telens::kAllGemms.size() * telens::kLinearTensors.size())) - 1;
  plan.gemms = 0b111;
  telens::test::RecordingListener listener(plan);
  telens::AutocastOptions autocast;
  autocast.recipe = std::make_shared<const telens::Float8CurrentScaling>();
  const telens::Autocast region(autocast);
  linear.forward(x);  // makes quantizers and finds operators; afterwards only what every step runs
  counted_forward(linear, x);
  return listener.calls.empty() ? 1 : 0;
}
