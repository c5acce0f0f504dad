#include "core/modules/linear_autograd.h"

#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/custom_function.h>

#include <utility>

#include "core/modules/backward_errors.h"
#include "core/modules/gemm_with_hooks.h"
#include "core/modules/main_grad.h"
#include "core/modules/named_errors.h"
#include "core/modules/second_derivative.h"
#include "core/ops/gemm.h"

namespace telens {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// The gradients that autograd needs.
struct Needs {
  bool dgrad = false;
  bool wgrad = false;
  bool bias = false;

  bool any() const { return dgrad || wgrad || bias; }
};

// An operand kept for the backward: its tensors go through save_for_backward, the rest is here.
class SavedOperand {
 public:
  SavedOperand() = default;

  // Appends the tensors that the second GEMM of the tensor reads: the columnwise codes and scales,
  // or the plain tensor.
  SavedOperand(const Operand& operand, variable_list& saved) : index_(saved.size()) {
    const auto* quantized = std::get_if<QuantizedTensor>(&operand);
    if (quantized == nullptr) {
      saved.push_back(std::get<at::Tensor>(operand));
      return;
    }
    saved.push_back(quantized->columnwise.codes);
    saved.push_back(quantized->columnwise.scale_inv);
    has_tensor_scale_ = quantized->columnwise.tensor_scale.defined();
    if (has_tensor_scale_) saved.push_back(quantized->columnwise.tensor_scale);
    quantized_ = *quantized;
    quantized_->rowwise = {};
    quantized_->columnwise = {};
  }

  Operand restore(const variable_list& saved) const {
    if (!quantized_) return saved[index_];
    QuantizedTensor quantized = *quantized_;
    quantized.columnwise = {saved[index_], saved[index_ + 1],
                            has_tensor_scale_ ? saved[index_ + 2] : at::Tensor()};
    return quantized;
  }

 private:
  std::size_t index_ = 0;
  bool has_tensor_scale_ = false;
  std::optional<QuantizedTensor> quantized_;  // without its tensors
};

// Everything that the backward needs besides tensors.
struct LinearBackward final : torch::CustomClassHolder {
  std::shared_ptr<GemmLayer> layer;
  ForwardContext context;
  Needs needs;
  bool fp8_grad = false;
  c10::intrusive_ptr<GradientCast> gradient_cast;
  std::vector<std::int64_t> input_sizes;
  at::ScalarType dtype{};  // of the computation
  at::ScalarType weight_dtype{};
  at::ScalarType bias_dtype{};
  at::Tensor accumulated_weight;  // wgrad is added to its main_grad; undefined: wgrad is returned
  bool first_microbatch = false;
  SavedOperand input;
  SavedOperand weight;
};

at::Tensor as_matrix(const at::Tensor& tensor) {
  const std::int64_t columns = tensor.size(-1);
  return tensor.dim() == 2 ? tensor
                           : tensor.reshape({columns == 0 ? 0 : tensor.numel() / columns, columns});
}

// An output rounded to the FP8 values of its quantizer, where the caller asked for it.
at::Tensor round_to_fp8(at::Tensor output, const ForwardContext& context, TensorRole role,
                        bool wanted) {
  const Quantizer* quantizer = wanted ? context.quantizer(role) : nullptr;
  if (quantizer == nullptr) return output;
  return quantizer->quantize(output, {.rowwise = true, .columnwise = false}).dequantize();
}

// The bias that the GEMM adds, for the GEMM and for the hooks of its output.
at::Tensor bias_for_gemm(const std::optional<at::Tensor>& bias, const Operand& activation,
                         at::ScalarType dtype) {
  if (!bias) return {};
  const at::Tensor typed = bias->to(dtype);
  return is_quantized(activation) ? ops::bias_of_16_bits(typed).to(dtype) : typed;
}

// ---- forward

class LinearFunction : public torch::autograd::Function<LinearFunction> {
 public:
  static at::Tensor forward(AutogradContext* autograd, const at::Tensor& input,
                            const at::Tensor& weight, const std::optional<at::Tensor>& bias,
                            const LinearArguments* arguments, Needs needs);
  static variable_list backward(AutogradContext* autograd, variable_list grad_outputs);
};

void save_for_backward(AutogradContext* autograd, const LinearArguments& arguments, Needs needs,
                       const GemmOperands& input, const GemmOperands& weight) {
  auto backward = c10::make_intrusive<LinearBackward>();
  variable_list saved;
  if (needs.wgrad) backward->input = SavedOperand(input.second, saved);
  if (needs.dgrad) backward->weight = SavedOperand(weight.second, saved);
  backward->layer = arguments.layer;
  backward->context = arguments.context;
  backward->context.recomputation = false;  // gradients come once, also after a recomputed forward
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
        fused_cast_scale(arguments.context, TensorName::gradient, needs.dgrad, needs.wgrad);
    cast->bias_dtype = needs.bias ? std::optional(backward->bias_dtype) : std::nullopt;
    backward->gradient_cast = cast;
  }
  autograd->save_for_backward(std::move(saved));
  autograd->saved_data["linear"] = c10::IValue::make_capsule(std::move(backward));
}

GemmOperands activation_operands(const LinearArguments& arguments, Needs needs) {
  if (arguments.codes != nullptr) return {*arguments.codes, *arguments.codes};
  const at::Tensor& input = arguments.input;
  const at::Tensor matrix = as_matrix(input);
  if (!matrix.is_same(input) && matrix.is_alias_of(input)) {
    // A view that was made below autograd counts versions by itself; the backward must notice an
    // in-place change of the input.
    torch::autograd::impl::set_version_counter(matrix,
                                               torch::autograd::impl::version_counter(input));
  }
  return quantize_operand(*arguments.layer, arguments.context,
                          {.tensor_name = TensorName::activation,
                           .tensor = matrix,
                           .dtype = input.scalar_type(),
                           .second_needed = needs.wgrad});
}

at::Tensor LinearFunction::forward(AutogradContext* autograd, const at::Tensor& input,
                                   const at::Tensor& weight, const std::optional<at::Tensor>& bias,
                                   const LinearArguments* arguments, Needs needs) {
  const at::AutoDispatchBelowADInplaceOrView below_autograd;
  GemmLayer& layer = *arguments->layer;
  const ForwardContext& context = arguments->context;
  const at::ScalarType dtype = input.scalar_type();

  const GemmOperands activation = activation_operands(*arguments, needs);
  const GemmOperands weights =
      weight_operand(layer, context, arguments->weight, arguments->call.is_first_microbatch,
                     {.tensor_name = TensorName::weight,
                      .tensor = weight,
                      .dtype = dtype,
                      .second_needed = needs.dgrad});
  const at::Tensor typed_bias = bias_for_gemm(bias, activation.first, dtype);
  at::Tensor output =
      gemm_with_hooks(layer, context,
                      {.gemm = Gemm::fprop,
                       .a = activation.first,
                       .b = weights.first,
                       .bias = typed_bias,
                       .out_dtype = dtype,
                       .layer = layer.name(),
                       .split_accumulator = context.uses_split_accumulator(Gemm::fprop)});
  output = round_to_fp8(std::move(output), context, TensorRole::output, arguments->call.fp8_output);
  if (needs.any()) save_for_backward(autograd, *arguments, needs, activation, weights);
  if (input.dim() == 2) return output;
  std::vector<std::int64_t> sizes = input.sizes().vec();
  sizes.back() = output.size(1);
  return output.view(sizes);
}

// ---- backward

at::Tensor product(const LinearBackward& backward, Gemm gemm, const Operand& left,
                   const Operand& right) {
  return gemm_with_hooks(*backward.layer, backward.context,
                         {.gemm = gemm,
                          .a = left,
                          .b = right,
                          .bias = {},
                          .out_dtype = backward.dtype,
                          .layer = backward.layer->name(),
                          .split_accumulator = backward.context.uses_split_accumulator(gemm)});
}

// Adds wgrad to main_grad; returns the weight's gradient for autograd. A layer whose wgrad the
// session may ever inspect makes the product and adds it in every iteration, so that inspecting
// changes no bit.
at::Tensor accumulate_wgrad(const LinearBackward& backward, const Operand& gradient,
                            const Operand& input) {
  GemmLayer& layer = *backward.layer;
  const at::Tensor& weight = backward.accumulated_weight;
  const MainGrad target = main_grad_of(weight, layer.name());
  if (backward.dtype == at::kDouble) {
    raise<UsageError>(
        "{}: fuse_wgrad_accumulation adds in FP32 and the layer computes in Double; switch it off",
        layer.name());
  }
  at::Tensor sum = target.buffer;
  if (target.overwrite || backward.first_microbatch) sum.zero_();
  const bool product_first = layer.hooks.may_watch_wgrad();
  const at::Tensor wgrad =
      gemm_with_hooks(layer, backward.context,
                      {.gemm = Gemm::wgrad,
                       .a = gradient,
                       .b = input,
                       .bias = {},
                       .out_dtype = product_first ? at::kFloat : backward.dtype,
                       .layer = layer.name(),
                       .accumulate_into = product_first ? at::Tensor() : sum,
                       .split_accumulator = backward.context.uses_split_accumulator(Gemm::wgrad),
                       .operand_dtype = backward.dtype});
  if (product_first) {
    TORCH_WARN_ONCE(
        "while a debug session runs, layers with fuse_wgrad_accumulation whose wgrad it may watch "
        "make it and add it to main_grad in two steps; otherwise that is one step, and the last "
        "bits of main_grad may differ");
    sum.add_(wgrad);
  }
  // In-place updates below autograd leave the version counter.
  if (!sum.is_inference()) sum.unsafeGetTensorImpl()->bump_version();
  return gradient_beside(target, weight);
}

// The gradient of the output, for the GEMMs and for the bias.
struct OutputGradient {
  GemmOperands operands;
  at::Tensor bias;
};

// The fused gradient of the next layer's backward if there is one, else quantizes grad_output.
OutputGradient output_gradient(const LinearBackward& backward, const at::Tensor& grad_output) {
  if (const FusedGradient* fused = fused_gradient(grad_output)) {
    return {.operands = {fused->codes, fused->codes}, .bias = fused->bias};
  }
  if (backward.gradient_cast && backward.gradient_cast->scale) {
    raise<UsageError>(
        "{}: the gradient of its output was replaced between two backward functions of one module; "
        "use the module's parts as modules of their own to change what passes between them",
        backward.layer->name());
  }
  const at::Tensor grad = as_matrix(grad_output).contiguous();
  OutputGradient gradient;
  if (backward.needs.dgrad || backward.needs.wgrad) {
    gradient.operands = quantize_operand(*backward.layer, backward.context,
                                         {.tensor_name = TensorName::gradient,
                                          .tensor = grad,
                                          .dtype = backward.dtype,
                                          .first_needed = backward.needs.dgrad,
                                          .second_needed = backward.needs.wgrad});
  }
  if (backward.needs.bias) gradient.bias = ops::bias_gradient(grad, backward.bias_dtype);
  return gradient;
}

struct Gradients {
  at::Tensor input;
  at::Tensor weight;
  at::Tensor bias;
};

Gradients compute_gradients(const LinearBackward& backward, const variable_list& saved,
                            const at::Tensor& grad_output) {
  const OutputGradient gradient = output_gradient(backward, grad_output);
  Gradients gradients{.input = {}, .weight = {}, .bias = gradient.bias};
  if (backward.needs.dgrad) {
    at::Tensor dgrad =
        product(backward, Gemm::dgrad, gradient.operands.first, backward.weight.restore(saved));
    gradients.input =
        round_to_fp8(std::move(dgrad), backward.context, TensorRole::grad_input, backward.fp8_grad)
            .view(backward.input_sizes);
  }
  if (backward.needs.wgrad) {
    const Operand input = backward.input.restore(saved);
    gradients.weight = backward.accumulated_weight.defined()
                           ? accumulate_wgrad(backward, gradient.operands.second, input)
                           : product(backward, Gemm::wgrad, gradient.operands.second, input)
                                 .to(backward.weight_dtype);
  }
  return gradients;
}

variable_list gradients_of(AutogradContext* autograd, const variable_list& grad_outputs) {
  const auto holder = autograd->saved_data["linear"].toCapsule();
  const auto& backward = static_cast<const LinearBackward&>(*holder);
  refuse_second_derivative(backward.layer->name());
  const c10::impl::ExcludeDispatchKeyGuard no_torch_autocast(c10::autocast_dispatch_keyset);
  const variable_list saved = autograd->get_saved_variables();  // a checkpoint recomputes them here
  // Nothing from here on is differentiable again, and above autograd each operator of ours would be
  // called with boxed arguments.
  const at::AutoDispatchBelowADInplaceOrView below_autograd;
  const Gradients gradients = naming_layer(
      backward.layer->name(), [&] { return compute_gradients(backward, saved, grad_outputs[0]); });
  if (backward.context.first_in_region) backward.context.region->update(/*backward=*/true);
  return {gradients.input, gradients.weight, gradients.bias, at::Tensor(), at::Tensor()};
}

variable_list LinearFunction::backward(AutogradContext* autograd, variable_list grad_outputs) {
  return in_backward([&] { return gradients_of(autograd, grad_outputs); });
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
