#include "core/modules/linear_function.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/sum.h>
#include <torch/csrc/autograd/custom_function.h>

#include <utility>

#include "core/gemm/gemm.h"
#include "core/modules/operand_preparation.h"
#include "core/modules/saved_operand.h"
#include "core/modules/second_derivative.h"
#include "core/modules/watched_gemm.h"
#include "core/ops/gemm.h"

namespace telens {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// Which results of a backward somebody will ask for.
struct Needs {
  bool dgrad = false;
  bool wgrad = false;
  bool bias = false;

  bool any() const { return dgrad || wgrad || bias; }
};

// What the backward needs besides tensors.
struct LinearBackward final : torch::CustomClassHolder {
  std::shared_ptr<LinearOperation::State> state;
  LayerPass pass;
  Needs needs;
  bool fp8_grad = false;
  std::vector<std::int64_t> input_sizes;
  at::ScalarType dtype{};  // of the computation
  at::ScalarType weight_dtype{};
  at::ScalarType bias_dtype{};
  SavedOperand input;
  SavedOperand weight;
};

at::Tensor as_matrix(const at::Tensor& tensor) {
  const std::int64_t columns = tensor.size(-1);
  return tensor.dim() == 2 ? tensor
                           : tensor.reshape({columns == 0 ? 0 : tensor.numel() / columns, columns});
}

bool runs_quantized(const LayerPass& pass, Gemm gemm) {
  if (!pass.quantizes()) {
    return false;
  }
  const auto has_quantizers = [&](TensorRole a, TensorRole b) {
    return pass.quantizers[a] != nullptr && pass.quantizers[b] != nullptr;
  };
  const Recipe::OverrideLinearPrecision& high_precision = pass.recipe->override_linear_precision;
  switch (gemm) {
    case Gemm::fprop:
      return !high_precision.fprop && has_quantizers(TensorRole::input, TensorRole::weight);
    case Gemm::dgrad:
      return !high_precision.dgrad && has_quantizers(TensorRole::grad_output, TensorRole::weight);
    case Gemm::wgrad:
      break;
  }
  return !high_precision.wgrad && has_quantizers(TensorRole::grad_output, TensorRole::input);
}

PreparationRequest request_for(const LayerPass& pass, TensorName name, const at::Tensor& tensor,
                               TensorRole role, at::ScalarType dtype, bool second_needed) {
  const auto [first, second] = gemms_of(name);
  return {.tensor_name = name,
          .tensor = tensor,
          .quantizer = pass.quantizes() ? pass.quantizers[role].get() : nullptr,
          .recipe = pass.recipe.get(),
          .dtype = dtype,
          .first_quantized = runs_quantized(pass, first),
          .second_quantized = runs_quantized(pass, second),
          .second_needed = second_needed};
}

// An output rounded to the FP8 values of its quantizer, where the caller asked for it.
at::Tensor round_to_fp8(at::Tensor output, const LayerPass& pass, TensorRole role, bool wanted) {
  if (!wanted || !pass.quantizes() || !pass.quantizers[role]) {
    return output;
  }
  pass.quantizers[role]->set_usage({.rowwise = true, .columnwise = false});
  return pass.quantizers[role]->quantize(output).dequantize();
}

// The bias that the GEMM adds, for the GEMM and for whoever looks at what came out.
at::Tensor bias_for_gemm(const std::optional<at::Tensor>& bias, const Operand& activation,
                         at::ScalarType dtype) {
  if (!bias) {
    return {};
  }
  const at::Tensor typed = bias->to(dtype);
  return is_quantized(activation) ? ops::bias_of_16_bits(typed).to(dtype) : typed;
}

at::Tensor watched_output(LinearOperation::State& state, const LayerPass& pass, at::Tensor output,
                          TensorName name, const at::Tensor& bias = {}) {
  const bool backward = name != TensorName::output;
  return pass.plan ? pass_output(std::move(output), name, bias,
                                 {state.hooks, *pass.plan, backward || !pass.recomputation})
                   : std::move(output);
}

class LinearFunction : public torch::autograd::Function<LinearFunction> {
 public:
  static at::Tensor forward(AutogradContext* context, const at::Tensor& input,
                            const at::Tensor& weight, const std::optional<at::Tensor>& bias,
                            const LinearArguments* arguments, Needs needs);
  static variable_list backward(AutogradContext* context, variable_list grad_outputs);
};

void save_for_backward(AutogradContext* context, const LinearArguments& arguments, Needs needs,
                       const PreparedTensor& input, const PreparedTensor& weight) {
  auto backward = c10::make_intrusive<LinearBackward>();
  variable_list saved;
  if (needs.wgrad) {
    backward->input = SavedOperand::save(input.second, saved);
  }
  if (needs.dgrad) {
    backward->weight = SavedOperand::save(weight.second, saved);
  }
  backward->state = arguments.state;
  backward->pass = arguments.pass;
  backward->needs = needs;
  backward->fp8_grad = arguments.call.fp8_grad;
  backward->input_sizes = arguments.input.sizes().vec();
  backward->dtype = arguments.input.scalar_type();
  backward->weight_dtype = arguments.weight.parameter.scalar_type();
  backward->bias_dtype =
      arguments.bias.defined() ? arguments.bias.scalar_type() : arguments.input.scalar_type();
  context->save_for_backward(std::move(saved));
  context->saved_data["linear"] = c10::IValue::make_capsule(std::move(backward));
}

at::Tensor LinearFunction::forward(AutogradContext* context, const at::Tensor& input,
                                   const at::Tensor& weight, const std::optional<at::Tensor>& bias,
                                   const LinearArguments* arguments, Needs needs) {
  const at::AutoDispatchBelowADInplaceOrView below_autograd;
  LinearOperation::State& state = *arguments->state;
  const LayerPass& pass = arguments->pass;
  const at::ScalarType dtype = input.scalar_type();

  const at::Tensor matrix = as_matrix(input);
  if (!matrix.is_same(input) && matrix.is_alias_of(input)) {
    // A view that was made below autograd counts versions by itself; the backward must notice an
    // in-place change of the input.
    torch::autograd::impl::set_version_counter(matrix,
                                               torch::autograd::impl::version_counter(input));
  }
  const PreparedTensor activation = prepare_operand(
      state, pass,
      request_for(pass, TensorName::activation, matrix, TensorRole::input, dtype, needs.wgrad));
  const PreparedTensor prepared_weight = prepare_weight(
      state, pass, arguments->weight, arguments->call.is_first_microbatch,
      request_for(pass, TensorName::weight, weight, TensorRole::weight, dtype, needs.dgrad));

  const at::Tensor typed_bias = bias_for_gemm(bias, activation.first, dtype);
  at::Tensor output = run_watched_gemm({.gemm = Gemm::fprop,
                                        .a = activation.first,
                                        .b = prepared_weight.first,
                                        .bias = typed_bias,
                                        .out_dtype = dtype,
                                        .layer = state.name()},
                                       state, pass);
  output = watched_output(state, pass, std::move(output), TensorName::output, typed_bias);
  output = round_to_fp8(std::move(output), pass, TensorRole::output, arguments->call.fp8_output);
  if (needs.any()) {
    save_for_backward(context, *arguments, needs, activation, prepared_weight);
  }
  if (input.dim() == 2) {
    return output;
  }
  std::vector<std::int64_t> sizes = input.sizes().vec();
  sizes.back() = output.size(1);
  return output.view(sizes);
}

struct Gradients {
  at::Tensor input;
  at::Tensor weight;
  at::Tensor bias;
};

Gradients compute_gradients(LinearBackward& backward, const variable_list& saved,
                            const at::Tensor& grad_output) {
  LinearOperation::State& state = *backward.state;
  const LayerPass& pass = backward.pass;
  const at::Tensor grad = as_matrix(grad_output).contiguous();
  Gradients gradients;
  if (backward.needs.dgrad || backward.needs.wgrad) {
    PreparationRequest request =
        request_for(pass, TensorName::gradient, grad, TensorRole::grad_output, backward.dtype,
                    backward.needs.wgrad);
    request.first_quantized = request.first_quantized && backward.needs.dgrad;
    LayerPass observing = pass;
    observing.recomputation = false;  // a gradient comes once, also after a recomputed forward
    const PreparedTensor prepared = prepare_operand(state, observing, request);
    const auto product = [&](Gemm gemm, const Operand& left, const SavedOperand& right) {
      return run_watched_gemm({.gemm = gemm,
                               .a = left,
                               .b = right.restore(saved),
                               .bias = {},
                               .out_dtype = backward.dtype,
                               .layer = state.name()},
                              state, pass);
    };
    if (backward.needs.dgrad) {
      at::Tensor dgrad = product(Gemm::dgrad, prepared.first, backward.weight);
      dgrad = watched_output(state, pass, std::move(dgrad), TensorName::dgrad);
      gradients.input =
          round_to_fp8(std::move(dgrad), pass, TensorRole::grad_input, backward.fp8_grad)
              .view(backward.input_sizes);
    }
    if (backward.needs.wgrad) {
      at::Tensor wgrad = product(Gemm::wgrad, prepared.second, backward.input);
      gradients.weight = watched_output(state, pass, std::move(wgrad), TensorName::wgrad)
                             .to(backward.weight_dtype);
    }
  }
  if (backward.needs.bias) {
    gradients.bias = grad.sum(0, /*keepdim=*/false, backward.bias_dtype);
  }
  return gradients;
}

variable_list LinearFunction::backward(AutogradContext* context, variable_list grad_outputs) {
  const auto holder = context->saved_data["linear"].toCapsule();
  auto& backward = static_cast<LinearBackward&>(*holder);
  refuse_second_derivative(backward.state->name());
  const c10::impl::ExcludeDispatchKeyGuard no_torch_autocast(c10::autocast_dispatch_keyset);
  const variable_list saved = context->get_saved_variables();  // a checkpoint recomputes them here
  // Nothing from here on is differentiable again, and above autograd each operator of ours would be
  // called with boxed arguments.
  const at::AutoDispatchBelowADInplaceOrView below_autograd;
  const Gradients gradients = compute_gradients(backward, saved, grad_outputs[0]);
  if (backward.pass.first_in_region) {
    backward.pass.region->update(/*backward=*/true);
  }
  return {gradients.input, gradients.weight, gradients.bias, at::Tensor(), at::Tensor()};
}

}  // namespace

at::Tensor apply_linear(const LinearArguments& arguments) {
  const c10::impl::ExcludeDispatchKeyGuard no_torch_autocast(c10::autocast_dispatch_keyset);
  const auto asks = [](const at::Tensor& tensor) {
    return tensor.defined() && tensor.requires_grad();
  };
  Needs needs;
  if (at::GradMode::is_enabled()) {
    needs = {asks(arguments.input), asks(arguments.weight.parameter), asks(arguments.bias)};
  }
  // An undefined tensor is no variable of a graph.
  const auto bias = arguments.bias.defined() ? std::optional(arguments.bias) : std::nullopt;
  return LinearFunction::apply(arguments.input, arguments.weight.parameter, bias, &arguments,
                               needs);
}

}  // namespace telens
