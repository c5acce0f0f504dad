#include "adamw.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/_fused_adamw.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>

namespace gpt {

AdamW::AdamW(const NamedTensors& parameters, const AdamWOptions& options) : options_(options) {
  for (const auto& [name, parameter] : parameters) {
    names_.push_back(name);
    parameters_.push_back(parameter);
    averages_.push_back(at::zeros_like(parameter.detach()));
    squared_averages_.push_back(at::zeros_like(parameter.detach()));
    steps_.push_back(at::zeros({}, parameter.options().dtype(at::kFloat).requires_grad(false)));
  }
}

void AdamW::step(double learning_rate) {
  const at::NoGradGuard no_grad;
  std::vector<at::Tensor> gradients;
  for (at::Tensor& parameter : parameters_) gradients.push_back(parameter.grad());
  for (at::Tensor& step : steps_) step += 1;
  at::_fused_adamw_(parameters_, gradients, averages_, squared_averages_, /*max_exp_avg_sqs=*/{},
                    steps_, learning_rate, options_.beta1, options_.beta2, options_.weight_decay,
                    options_.eps, /*amsgrad=*/false, /*maximize=*/false);
  for (at::Tensor& parameter : parameters_) parameter.mutable_grad().reset();
}

AdamW::NamedTensors AdamW::state() const {
  NamedTensors state;
  for (std::size_t i = 0; i < names_.size(); ++i) {
    state.emplace_back("average." + names_[i], averages_[i]);
    state.emplace_back("squared_average." + names_[i], squared_averages_[i]);
    state.emplace_back("step." + names_[i], steps_[i]);
  }
  return state;
}

}  // namespace gpt
