#include "core/modules/checkpointed_call.h"

#include <ATen/Context.h>
#include <ATen/core/Generator.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/custom_function.h>

#include <mutex>

#include "core/modules/second_derivative.h"

namespace telens {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// The second call needs these besides its inputs.
struct FirstCall : torch::CustomClassHolder {
  TensorFunction function;
  at::Generator generator;
  at::Tensor random_state;
};

at::Tensor state_of(at::Generator& generator) {
  const std::scoped_lock lock(generator.mutex());
  return generator.get_state();
}

void set_state(at::Generator& generator, const at::Tensor& state) {
  const std::scoped_lock lock(generator.mutex());
  generator.set_state(state);
}

class CheckpointedCall : public torch::autograd::Function<CheckpointedCall> {
 public:
  static at::Tensor forward(AutogradContext* context, const TensorFunction& function,
                            at::TensorList inputs) {
    auto first = c10::make_intrusive<FirstCall>();
    first->function = function;
    first->generator = at::globalContext().defaultGenerator(inputs[0].device());
    first->random_state = state_of(first->generator);
    context->saved_data["call"] = c10::IValue::make_capsule(std::move(first));
    context->save_for_backward(inputs.vec());
    const at::NoGradGuard no_grad;
    return function(inputs.vec());
  }

  static variable_list backward(AutogradContext* context, const variable_list& grads) {
    refuse_second_derivative("checkpoint_core_attention");
    const auto holder = context->saved_data["call"].toCapsule();
    auto& first = static_cast<FirstCall&>(*holder);
    variable_list inputs = context->get_saved_variables();
    variable_list wanted;
    for (at::Tensor& input : inputs) {
      const bool learned = input.requires_grad();
      input = input.detach().set_requires_grad(learned);
      if (learned) wanted.push_back(input);
    }
    const at::Tensor present = state_of(first.generator);
    set_state(first.generator, first.random_state);
    at::Tensor result;
    {
      const at::AutoGradMode with_grad(true);
      result = first.function(inputs);
    }
    set_state(first.generator, present);
    const variable_list made = torch::autograd::grad({result}, wanted, {grads[0]});
    variable_list all(1);  // the function's
    std::size_t next = 0;
    for (const at::Tensor& input : inputs) {
      all.push_back(input.requires_grad() ? made[next++] : at::Tensor());
    }
    return all;
  }
};

}  // namespace

at::Tensor checkpointed_call(const TensorFunction& function,
                             const std::vector<at::Tensor>& inputs) {
  // Functions of autograd take no undefined tensors.
  std::vector<at::Tensor> given;
  std::vector<bool> is_given;
  for (const at::Tensor& input : inputs) {
    is_given.push_back(input.defined());
    if (input.defined()) given.push_back(input);
  }
  const TensorFunction of_given = [function, is_given](const std::vector<at::Tensor>& tensors) {
    std::vector<at::Tensor> all(is_given.size());
    auto next = tensors.begin();
    for (std::size_t i = 0; i < all.size(); ++i) {
      if (is_given[i]) all[i] = *next++;
    }
    return function(all);
  };
  return CheckpointedCall::apply(of_given, at::TensorList(given));
}

}  // namespace telens
