// Several backward passes of one graph at a time: a program that keeps a graph may run them in
// threads.
#include <ATen/ops/equal.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/zeros.h>
#include <gmock/gmock.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/function_hook.h>

#include <barrier>
#include <latch>
#include <string>
#include <thread>

#include "core/modules/fused/layer_norm_mlp.h"
#include "core/quantization/autocast.h"
#include "core/quantization/delayed_scaling.h"

namespace telens {
namespace {

using torch::autograd::variable_list;

// The backward of the activation quantizes the gradient for fc1, which gets the codes with a
// placeholder tensor.
class ConcurrentBackward : public ::testing::Test {
 protected:
  ConcurrentBackward() {
    auto recipe = std::make_shared<DelayedScaling>();
    // So that a backward pass does not change the scales of the next one.
    recipe->scaling_factor_compute_algo = [](const at::Tensor&, const at::Tensor& scale,
                                             const at::Tensor&) { return scale; };
    const Autocast autocast({.recipe = recipe});
    y = module.forward({.inp = x})[0];
  }

  at::Tensor gradient(const at::Tensor& of_y) const {
    return torch::autograd::grad({y}, {x}, {of_y}, /*retain_graph=*/true)[0];
  }

  LayerNormMLP module{{.hidden_size = 32, .ffn_hidden_size = 64}};
  at::Tensor x = at::randn({16, 32}).requires_grad_();
  at::Tensor y;
};

TEST_F(ConcurrentBackward, each_backward_gets_its_gradient) {
  constexpr int kThreads = 2, kTimes = 20;
  std::vector<at::Tensor> of_y, expected;
  for (int i = 0; i < kThreads; ++i) {
    of_y.push_back(at::randn({16, 32}));
    expected.push_back(gradient(of_y.back()));
  }
  std::vector<int> wrong(kThreads, 0);
  std::vector<std::thread> threads;
  for (std::size_t i = 0; i < kThreads; ++i) {
    threads.emplace_back([&, i] {
      for (int j = 0; j < kTimes; ++j) wrong[i] += !at::equal(gradient(of_y[i]), expected[i]);
    });
  }
  for (std::thread& each : threads) each.join();
  EXPECT_THAT(wrong, ::testing::Each(0));
}

// Makes both backward passes wait between the activation and fc1. The one that replaces the
// gradient continues only after the other one is done.
class Meeting : public torch::autograd::FunctionPreHook {
 public:
  explicit Meeting(std::latch& other_is_done) : other_is_done_(other_is_done) {}

  static thread_local bool replaces;

  variable_list operator()(const variable_list& gradients) override {
    both_.arrive_and_wait();
    if (!replaces) return gradients;
    other_is_done_.wait();
    return {at::zeros(gradients[0].sizes())};
  }

 private:
  std::barrier<> both_{2};
  std::latch& other_is_done_;
};

thread_local bool Meeting::replaces = false;

TEST_F(ConcurrentBackward, rejects_a_replaced_gradient) {
  std::latch is_done(1);
  const auto fc2 = y.grad_fn();
  const auto activation = fc2->next_edge(0).function;
  const auto fc1 = activation->next_edge(0).function;
  fc1->add_pre_hook(std::make_unique<Meeting>(is_done));
  const at::Tensor of_y = at::randn({16, 32});
  std::thread whole([&] {
    EXPECT_NO_THROW(gradient(of_y));
    is_done.count_down();
  });
  std::string refusal = "none";
  std::thread replaced([&] {
    Meeting::replaces = true;
    try {
      gradient(of_y);
    } catch (const UsageError& error) {
      refusal = error.what();
    }
  });
  whole.join();
  replaced.join();
  EXPECT_THAT(refusal, ::testing::HasSubstr("the gradient of its output was replaced"));
}

}  // namespace
}  // namespace telens
