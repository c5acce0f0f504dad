#include "core/modules/linear_function.h"

#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/custom_function.h>

#include <utility>

#include "core/gemm/gemm.h"
#include "core/modules/backward_errors.h"
#include "core/modules/main_grad.h"
#include "core/modules/named_errors.h"
#include "core/modules/operand_preparation.h"
#include "core/modules/saved_operand.h"
#include "core/modules/second_derivative.h"
#include "core/modules/watched_gemm.h"
#include "core/ops/fused_quantize.h"
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
  c10::intrusive_ptr<GradientCast> gradient_cast;
  std::vector<std::int64_t> input_sizes;
  at::ScalarType dtype{};  // of the computation
  at::ScalarType weight_dtype{};
  at::ScalarType bias_dtype{};
  at::Tensor accumulated_weight;  // whose main_grad wgrad is added to; undefined: none's
  bool first_microbatch = false;
  SavedOperand input;
  SavedOperand weight;
};

at::Tensor as_matrix(const at::Tensor& tensor) {
  const std::int64_t columns = tensor.size(-1);
  return tensor.dim() == 2 ? tensor
                           : tensor.reshape({columns == 0 ? 0 : tensor.numel() / columns, columns});
}

}  // namespace

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

namespace {

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
  if (needs.wgrad && arguments.call.accumulates_wgrad) {
    backward->accumulated_weight = arguments.weight.parameter;
    backward->first_microbatch = arguments.call.is_first_microbatch.value_or(false);
  }
  backward->bias_dtype =
      arguments.bias.defined() ? arguments.bias.scalar_type() : arguments.input.scalar_type();
  if (const auto& cast = arguments.call.gradient_cast) {
    cast->scale =
        scale_of_fused_cast(arguments.pass, TensorName::gradient, needs.dgrad, needs.wgrad);
    cast->bias_dtype = needs.bias ? std::optional(backward->bias_dtype) : std::nullopt;
    backward->gradient_cast = cast;
  }
  context->save_for_backward(std::move(saved));
  context->saved_data["linear"] = c10::IValue::make_capsule(std::move(backward));
}

PreparedTensor prepare_activation(const LinearArguments& arguments, Needs needs) {
  if (arguments.codes != nullptr) return {*arguments.codes, *arguments.codes};
  const at::Tensor& input = arguments.input;
  const at::Tensor matrix = as_matrix(input);
  if (!matrix.is_same(input) && matrix.is_alias_of(input)) {
    // A view that was made below autograd counts versions by itself; the backward must notice an
    // in-place change of the input.
    torch::autograd::impl::set_version_counter(matrix,
                                               torch::autograd::impl::version_counter(input));
  }
  return prepare_operand(*arguments.state, arguments.pass,
                         request_for(arguments.pass, TensorName::activation, matrix,
                                     TensorRole::input, input.scalar_type(), needs.wgrad));
}

at::Tensor LinearFunction::forward(AutogradContext* context, const at::Tensor& input,
                                   const at::Tensor& weight, const std::optional<at::Tensor>& bias,
                                   const LinearArguments* arguments, Needs needs) {
  const at::AutoDispatchBelowADInplaceOrView below_autograd;
  LinearOperation::State& state = *arguments->state;
  const LayerPass& pass = arguments->pass;
  const at::ScalarType dtype = input.scalar_type();

  const PreparedTensor activation = prepare_activation(*arguments, needs);
  const PreparedTensor prepared_weight = prepare_weight(
      state, pass, arguments->weight, arguments->call.is_first_microbatch,
      request_for(pass, TensorName::weight, weight, TensorRole::weight, dtype, needs.dgrad));

  const at::Tensor typed_bias = bias_for_gemm(bias, activation.first, dtype);
  at::Tensor output =
      run_watched_gemm({.gemm = Gemm::fprop,
                        .a = activation.first,
                        .b = prepared_weight.first,
                        .bias = typed_bias,
                        .out_dtype = dtype,
                        .layer = state.name(),
                        .split_accumulator = pass.uses_split_accumulator(Gemm::fprop)},
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

// Adds wgrad to main_grad; returns what autograd gets as the weight's gradient. A layer whose wgrad
// the session may ever look at makes the product and adds it in every iteration, so that looking
// changes no bit.
at::Tensor accumulate_wgrad(const LinearBackward& backward, const Operand& gradient,
                            const Operand& input) {
  LinearOperation::State& state = *backward.state;
  const at::Tensor& weight = backward.accumulated_weight;
  const MainGrad target = main_grad_of(weight, state.name());
  if (backward.dtype == at::kDouble) {
    raise<UsageError>(
        "{}: fuse_wgrad_accumulation adds in FP32 and the layer computes in Double; switch it off",
        state.name());
  }
  at::Tensor sum = target.buffer;
  if (target.overwrite || backward.first_microbatch) sum.zero_();
  const bool product_first = state.hooks.may_watch_wgrad();
  at::Tensor wgrad =
      run_watched_gemm({.gemm = Gemm::wgrad,
                        .a = gradient,
                        .b = input,
                        .bias = {},
                        .out_dtype = product_first ? at::kFloat : backward.dtype,
                        .layer = state.name(),
                        .accumulate_into = product_first ? at::Tensor() : sum,
                        .split_accumulator = backward.pass.uses_split_accumulator(Gemm::wgrad),
                        .operand_dtype = backward.dtype},
                       state, backward.pass);
  if (product_first) {
    TORCH_WARN_ONCE(
        "while a debug session runs, layers with fuse_wgrad_accumulation whose wgrad it may watch "
        "make it and add it to main_grad in two steps; otherwise that is one step, and the last "
        "bits of main_grad may differ");
    sum.add_(watched_output(state, backward.pass, std::move(wgrad), TensorName::wgrad));
  }
  if (!sum.is_inference())
    sum.unsafeGetTensorImpl()->bump_version();  // nobody counts below autograd
  return gradient_beside(target, weight);
}

struct Gradients {
  at::Tensor input;
  at::Tensor weight;
  at::Tensor bias;
};

// The gradient of the output, for the GEMMs and for the bias.
struct PreparedGradient {
  PreparedTensor operands;
  at::Tensor bias;
};

PreparedGradient prepare_gradient(const LinearBackward& backward, const at::Tensor& grad_output) {
  const at::Tensor grad = as_matrix(grad_output).contiguous();
  PreparedGradient prepared;
  if (backward.needs.dgrad || backward.needs.wgrad) {
    PreparationRequest request =
        request_for(backward.pass, TensorName::gradient, grad, TensorRole::grad_output,
                    backward.dtype, backward.needs.wgrad);
    request.first_quantized = request.first_quantized && backward.needs.dgrad;
    LayerPass observing = backward.pass;
    observing.recomputation = false;  // a gradient comes once, also after a recomputed forward
    prepared.operands = prepare_operand(*backward.state, observing, request);
  }
  if (backward.needs.bias) prepared.bias = ops::bias_gradient(grad, backward.bias_dtype);
  return prepared;
}

// What the backward behind this one made in place of the gradient, or the gradient prepared.
PreparedGradient prepared_gradient(const LinearBackward& backward, const at::Tensor& grad_output) {
  if (const MadeGradient* made = made_gradient_on(grad_output)) {
    return {.operands = {made->codes, made->codes}, .bias = made->bias};
  }
  if (backward.gradient_cast && backward.gradient_cast->scale) {
    raise<UsageError>(
        "{}: the gradient of its output was replaced between two backward functions of one module; "
        "use the module's parts as modules of their own to change what passes between them",
        backward.state->name());
  }
  return prepare_gradient(backward, grad_output);
}

Gradients compute_gradients(LinearBackward& backward, const variable_list& saved,
                            const at::Tensor& grad_output) {
  LinearOperation::State& state = *backward.state;
  const LayerPass& pass = backward.pass;
  const auto [prepared, bias] = prepared_gradient(backward, grad_output);
  Gradients gradients{.input = {}, .weight = {}, .bias = bias};
  if (backward.needs.dgrad || backward.needs.wgrad) {
    const auto product = [&](Gemm gemm, const Operand& left, const SavedOperand& right) {
      return run_watched_gemm({.gemm = gemm,
                               .a = left,
                               .b = right.restore(saved),
                               .bias = {},
                               .out_dtype = backward.dtype,
                               .layer = state.name(),
                               .split_accumulator = pass.uses_split_accumulator(gemm)},
                              state, pass);
    };
    if (backward.needs.dgrad) {
      at::Tensor dgrad = product(Gemm::dgrad, prepared.first, backward.weight);
      dgrad = watched_output(state, pass, std::move(dgrad), TensorName::dgrad);
      gradients.input =
          round_to_fp8(std::move(dgrad), pass, TensorRole::grad_input, backward.fp8_grad)
              .view(backward.input_sizes);
    }
    if (backward.accumulated_weight.defined()) {
      gradients.weight = accumulate_wgrad(backward, prepared.second, backward.input.restore(saved));
    } else if (backward.needs.wgrad) {
      at::Tensor wgrad = product(Gemm::wgrad, prepared.second, backward.input);
      gradients.weight = watched_output(state, pass, std::move(wgrad), TensorName::wgrad)
                             .to(backward.weight_dtype);
    }
  }
  return gradients;
}

variable_list gradients_of(AutogradContext* context, const variable_list& grad_outputs) {
  const auto holder = context->saved_data["linear"].toCapsule();
  auto& backward = static_cast<LinearBackward&>(*holder);
  refuse_second_derivative(backward.state->name());
  const c10::impl::ExcludeDispatchKeyGuard no_torch_autocast(c10::autocast_dispatch_keyset);
  const variable_list saved = context->get_saved_variables();  // a checkpoint recomputes them here
  // Nothing from here on is differentiable again, and above autograd each operator of ours would be
  // called with boxed arguments.
  const at::AutoDispatchBelowADInplaceOrView below_autograd;
  const Gradients gradients = naming_layer(
      backward.state->name(), [&] { return compute_gradients(backward, saved, grad_outputs[0]); });
  if (backward.pass.first_in_region) {
    backward.pass.region->update(/*backward=*/true);
  }
  return {gradients.input, gradients.weight, gradients.bias, at::Tensor(), at::Tensor()};
}

variable_list LinearFunction::backward(AutogradContext* context, variable_list grad_outputs) {
  return in_backward([&] { return gradients_of(context, grad_outputs); });
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
