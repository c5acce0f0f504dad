// Compares FP8 Linear, forward and backward, with torch.nn.Linear in BF16. FP8 Linear runs without
// and with all statistics. On a processor without BF16 instructions, FP8 and BF16 are compared with
// torch.nn.Linear in FP32, because LibTorch's BF16 GEMM is slow there.
#include <ATen/ATen.h>
#include <torch/nn/modules/linear.h>

#include <memory>

#include "benchmarks/arguments.h"
#include "benchmarks/sessions.h"
#include "benchmarks/side_by_side.h"
#include "core/modules/linear/linear.h"
#include "core/ops/device.h"
#include "core/quantization/autocast.h"

namespace {

using telens::benchmark::Contender;

struct Shape {
  std::int64_t tokens, in, out;
};

// Forward and backward of any linear module, from the same input and gradient.
template <typename Module>
class Step {
 public:
  Step(std::shared_ptr<Module> module, const Shape& shape, at::ScalarType dtype)
      : module_(std::move(module)),
        x_(at::randn({shape.tokens, shape.in}).to(dtype).requires_grad_()),
        gradient_(at::randn({shape.tokens, shape.out}).to(dtype)) {}

  void run(bool fp8) {
    x_.mutable_grad() = at::Tensor();
    for (at::Tensor& parameter : module_->parameters()) parameter.mutable_grad() = at::Tensor();
    at::Tensor y;
    if (fp8) {
      telens::Autocast region;
      y = module_->forward(x_);
      region.exit();
    } else {
      y = module_->forward(x_);
    }
    y.backward(gradient_);
  }

 private:
  std::shared_ptr<Module> module_;
  at::Tensor x_, gradient_;
};

std::shared_ptr<telens::Linear> make_linear(const Shape& shape) {
  telens::LinearOptions options;
  options.in_features = shape.in;
  options.out_features = shape.out;
  options.parameters.params_dtype = at::kBFloat16;
  options.parameters.device = at::Device(at::kCPU);
  options.name = "linear";
  return std::make_shared<telens::Linear>(options);
}

std::shared_ptr<torch::nn::LinearImpl> make_torch_linear(const Shape& shape, at::ScalarType dtype) {
  auto linear = std::make_shared<torch::nn::LinearImpl>(shape.in, shape.out);
  linear->to(dtype);
  return linear;
}

void compare(const std::string& row, const Shape& shape, int runs,
             const telens::benchmark::Arguments& arguments) {
  const bool has_bf16 = telens::ops::has_native_bf16();
  const at::ScalarType peer = has_bf16 ? at::kBFloat16 : at::kFloat;
  Step<telens::Linear> ours(make_linear(shape), shape, at::kBFloat16);
  Step<torch::nn::LinearImpl> theirs(make_torch_linear(shape, peer), shape, peer);
  const auto warm = [runs](const auto& run) {
    for (int i = 0; i < std::min(runs, 3); ++i) run();
  };
  const auto watched = [&] {
    ours.run(true);
    telens::debug::step();
  };
  std::vector<Contender> contenders{
      {has_bf16 ? "torch.nn.Linear BF16" : "torch.nn.Linear FP32", [&] { theirs.run(false); },
       [&] { warm([&] { theirs.run(false); }); }},
      {"telens.Linear FP8", [&] { ours.run(true); }, [&] { warm([&] { ours.run(true); }); }},
      {"telens.Linear FP8 with all statistics", watched,
       [&] {
         telens::benchmark::begin_session(telens::benchmark::all_statistics(), arguments.folder);
         warm(watched);
       },
       [] { telens::debug::end_debug(); }}};
  if (!has_bf16) {
    contenders.push_back(
        {"telens.Linear BF16", [&] { ours.run(false); }, [&] { warm([&] { ours.run(false); }); }});
  }
  telens::benchmark::compare(row, contenders, {.rounds = arguments.rounds, .runs = runs});
}

}  // namespace

int main(int argc, char** argv) {
  const auto arguments =
      telens::benchmark::parse_arguments(argc, argv, "FP8 Linear against torch.nn.Linear.");
  at::manual_seed(1);
  compare("2048x1024x1024", {2048, 1024, 1024}, 3, arguments);
  compare("128x256x256", {128, 256, 256}, 50, arguments);
  return 0;
}
