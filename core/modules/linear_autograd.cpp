#include "core/modules/linear_autograd.h"

#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/custom_function.h>

#include <utility>

#include "core/distributed/gather_operand.h"
#include "core/modules/accumulated_wgrad.h"
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
  LinearParallel parallel;
  Needs needs;
  bool fp8_grad = false;
  c10::intrusive_ptr<GradientCast> gradient_cast;
  std::vector<std::int64_t> input_sizes;
  at::ScalarType dtype{};  // the computation's
  at::ScalarType weight_dtype{};
  at::ScalarType bias_dtype{};
  AccumulatedWgrad accumulated;
  at::Tensor delayed_weight;  // wgrad waits for backward_dw; undefined: it is made in the backward
  SavedOperand input;
  bool input_is_shard = false;  // its rows are this rank's
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

// How the layer is divided in this call. With the whole input given, a column layer sends nothing.
LinearParallel parallel_in(const LinearArguments& arguments) {
  return arguments.call.input_is_whole ? LinearParallel() : arguments.layer->parallel;
}

// The activation as the GEMMs take it.
struct ActivationOperands {
  Operand first;          // the whole
  Operand second;         // for wgrad
  bool is_shard = false;  // the rows of `second` are this rank's
};

void save_for_backward(AutogradContext* autograd, const LinearArguments& arguments,
                       const LinearParallel& parallel, Needs needs, const ActivationOperands& input,
                       const GemmOperands& weight) {
  auto backward = c10::make_intrusive<LinearBackward>();
  variable_list saved;
  if (needs.wgrad) backward->input = SavedOperand(input.second, saved);
  backward->input_is_shard = input.is_shard;
  backward->parallel = parallel;
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
    backward->accumulated = {.weights = parameters_of(arguments.weight),
                             .overwrite = arguments.call.is_first_microbatch.value_or(false),
                             .dtype = arguments.input.scalar_type()};
  }
  if (needs.wgrad && arguments.call.delays_wgrad) {
    backward->delayed_weight = arguments.weight.parameter;
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

// [rows, columns] of a tensor. A view that is made below autograd counts versions by itself; what
// reads it later must notice an in-place change of the tensor.
at::Tensor as_matrix_of_one_version(const at::Tensor& tensor) {
  const at::Tensor matrix = as_matrix(tensor);
  if (!matrix.is_same(tensor) && matrix.is_alias_of(tensor)) {
    torch::autograd::impl::set_version_counter(matrix,
                                               torch::autograd::impl::version_counter(tensor));
  }
  return matrix;
}

// The operands of the activation that the layer was given.
GemmOperands given_operands(const LinearArguments& arguments, Needs needs) {
  if (arguments.codes != nullptr) return {*arguments.codes, *arguments.codes};
  const at::Tensor& input = arguments.input;
  const at::Tensor matrix = as_matrix_of_one_version(input);
  return quantize_operand(*arguments.layer, arguments.context,
                          {.tensor_name = TensorName::activation,
                           .tensor = matrix,
                           .dtype = input.scalar_type(),
                           .second_needed = needs.wgrad,
                           .gathered = arguments.call.input_is_whole});
}

bool is_modified(const ForwardContext& context, Gemm gemm, TensorName name) {
  return context.plan && context.plan->modifies(gemm, name);
}

// True if what the quantizer of a tensor makes of each rank's rows is what it makes of the whole.
bool quantizes_by_parts(const ForwardContext& context, TensorRole role, std::int64_t rows) {
  const Quantizer* quantizer = context.quantizer(role);
  return quantizer == nullptr || can_join_codes(quantizer->mode(), rows);
}

// Codes are gathered: in the forward those of fprop, in the backward those of wgrad, of which this
// rank's are kept. Where a block of rows would lie on two ranks, values are gathered and quantized.
ActivationOperands activation_operands(const LinearArguments& arguments,
                                       const LinearParallel& parallel, Needs needs) {
  if (!parallel.gathers_input()) {
    GemmOperands operands = given_operands(arguments, needs);
    return {std::move(operands.first), std::move(operands.second)};
  }
  const std::int64_t columns = arguments.input.size(-1);
  const std::int64_t rows = columns == 0 ? 0 : arguments.input.numel() / columns;
  if (!quantizes_by_parts(arguments.context, TensorRole::input, rows)) {
    const at::Tensor whole = gather_rows(as_matrix(arguments.input), parallel.group).wait();
    GemmOperands operands = quantize_operand(*arguments.layer, arguments.context,
                                             {.tensor_name = TensorName::activation,
                                              .tensor = whole,
                                              .dtype = arguments.input.scalar_type(),
                                              .second_needed = needs.wgrad,
                                              .gathered = true});
    return {std::move(operands.first), std::move(operands.second)};
  }
  GemmOperands own = given_operands(arguments, needs);
  const bool modified = is_modified(arguments.context, Gemm::fprop, TensorName::activation);
  Operand whole =
      gather_rowwise({own.first, parallel.group, arguments.layer->name(), modified}).wait();
  return {std::move(whole), std::move(own.second), /*is_shard=*/true};
}

// The layer's output of fprop's product, which may be a part of a sum over ranks.
at::Tensor finish_output(const LinearArguments& arguments, const LinearParallel& parallel,
                         at::Tensor product, const at::Tensor& bias) {
  if (parallel.sums_output()) product = parallel.sum(product).wait();
  if (parallel.adds_bias_to_sum() && bias.defined()) product.add_(bias);
  return run_output_hooks(*arguments.layer, arguments.context, Gemm::fprop, bias,
                          std::move(product));
}

at::Tensor LinearFunction::forward(AutogradContext* autograd, const at::Tensor& input,
                                   const at::Tensor& weight, const std::optional<at::Tensor>& bias,
                                   const LinearArguments* arguments, Needs needs) {
  const at::AutoDispatchBelowADInplaceOrView below_autograd;
  GemmLayer& layer = *arguments->layer;
  const ForwardContext& context = arguments->context;
  const at::ScalarType dtype = input.scalar_type();

  const LinearParallel parallel = parallel_in(*arguments);
  const ActivationOperands activation = activation_operands(*arguments, parallel, needs);
  const GemmOperands weights =
      weight_operand(layer, context, arguments->weight, arguments->call.is_first_microbatch,
                     {.tensor_name = TensorName::weight,
                      .tensor = weight,
                      .dtype = dtype,
                      .second_needed = needs.dgrad});
  const at::Tensor typed_bias = bias_for_gemm(bias, activation.first, dtype);
  at::Tensor output =
      gemm_with_inspection(layer, context,
                           {.gemm = Gemm::fprop,
                            .a = activation.first,
                            .b = weights.first,
                            .bias = parallel.adds_bias_to_sum() ? at::Tensor() : typed_bias,
                            .out_dtype = dtype,
                            .layer = layer.name(),
                            .split_accumulator = context.uses_split_accumulator(Gemm::fprop)});
  output = finish_output(*arguments, parallel, std::move(output), typed_bias);
  output = round_to_fp8(std::move(output), context, TensorRole::output, arguments->call.fp8_output);
  if (needs.any()) save_for_backward(autograd, *arguments, parallel, needs, activation, weights);
  if (input.dim() == 2) return output;
  std::vector<std::int64_t> sizes = input.sizes().vec();
  if (parallel.gathers_input()) sizes[0] *= parallel.size;
  if (parallel.gathers_gradient()) sizes[0] /= parallel.size;  // the sum is scattered
  sizes.back() = output.size(1);
  return output.view(sizes);
}

// ---- backward

at::Tensor product(const LinearBackward& backward, Gemm gemm, const Operand& left,
                   const Operand& right) {
  return gemm_with_inspection(*backward.layer, backward.context,
                              {.gemm = gemm,
                               .a = left,
                               .b = right,
                               .bias = {},
                               .out_dtype = backward.dtype,
                               .layer = backward.layer->name(),
                               .split_accumulator = backward.context.uses_split_accumulator(gemm)});
}

at::Tensor output_hooks(const LinearBackward& backward, Gemm gemm, at::Tensor output) {
  return run_output_hooks(*backward.layer, backward.context, gemm, {}, std::move(output));
}

// The gradient of the output, for the GEMMs and for the bias. Operands that are gathered are waited
// for where they are used.
struct OutputGradient {
  GemmOperands operands;
  at::Tensor bias;
  PendingOperand whole_first = {};
  PendingOperand whole_second = {};

  Operand first() { return whole_first ? whole_first.wait() : operands.first; }
  Operand second() { return whole_second ? whole_second.wait() : operands.second; }
};

void gather(OutputGradient& gradient, const LinearBackward& backward) {
  const auto shard = [&](Gemm gemm, const Operand& operand) {
    return OperandShard{operand, backward.parallel.group, backward.layer->name(),
                        is_modified(backward.context, gemm, TensorName::gradient)};
  };
  if (backward.needs.dgrad) {
    gradient.whole_first = gather_rowwise(shard(Gemm::dgrad, gradient.operands.first));
  }
  if (backward.needs.wgrad) {
    gradient.whole_second = gather_columnwise(shard(Gemm::wgrad, gradient.operands.second));
  }
}

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
  at::Tensor grad = as_matrix_of_one_version(grad_output).contiguous();
  OutputGradient gradient;
  // A row layer's bias is added behind the sum: its gradient is that of this rank's rows.
  if (backward.needs.bias) gradient.bias = ops::bias_gradient(grad, backward.bias_dtype);
  if (backward.needs.dgrad || backward.needs.wgrad) {
    const bool gathers = backward.parallel.gathers_gradient();
    const bool by_parts =
        quantizes_by_parts(backward.context, TensorRole::grad_output, grad.size(0));
    if (gathers && !by_parts) grad = gather_rows(grad, backward.parallel.group).wait();
    gradient.operands = quantize_operand(*backward.layer, backward.context,
                                         {.tensor_name = TensorName::gradient,
                                          .tensor = grad,
                                          .dtype = backward.dtype,
                                          .first_needed = backward.needs.dgrad,
                                          .second_needed = backward.needs.wgrad,
                                          .gathered = gathers && !by_parts});
    if (gathers && by_parts) gather(gradient, backward);
  }
  return gradient;
}

struct Gradients {
  at::Tensor input;
  at::Tensor weight;
  at::Tensor bias;
};

// wgrad's activation: the saved one, or the rows of all ranks, whose gather begins here.
class SavedInput {
 public:
  SavedInput(const LinearBackward& backward, const variable_list& saved)
      : own_(backward.input.restore(saved)) {
    if (!backward.input_is_shard) return;
    const bool modified = is_modified(backward.context, Gemm::wgrad, TensorName::activation);
    whole_ = gather_columnwise({own_, backward.parallel.group, backward.layer->name(), modified});
  }

  Operand wait() { return whole_ ? whole_.wait() : own_; }

 private:
  Operand own_;
  PendingOperand whole_;
};

// The gradient of the input, which may be on its way to be summed over ranks. Hooks see the sum,
// for which they wait; otherwise wgrad runs meanwhile.
class PendingDgrad {
 public:
  PendingDgrad(const LinearBackward& backward, const Operand& gradient, const Operand& weight)
      : backward_(backward) {
    const at::Tensor dgrad = product(backward, Gemm::dgrad, gradient, weight);
    sum_ = backward.parallel.sums_dgrad() ? backward.parallel.sum(dgrad) : PendingTensor(dgrad);
    if (has_output_hooks(backward.context, Gemm::dgrad)) {
      sum_ = PendingTensor(output_hooks(backward, Gemm::dgrad, sum_.wait()));
    }
  }

  at::Tensor wait() {
    return round_to_fp8(sum_.wait(), backward_.context, TensorRole::grad_input, backward_.fp8_grad)
        .view(backward_.input_sizes);
  }

 private:
  const LinearBackward& backward_;
  PendingTensor sum_;
};

at::Tensor weight_gradient(const LinearBackward& backward, const Operand& gradient,
                           const Operand& input) {
  if (backward.accumulated) {
    return accumulate_wgrad(*backward.layer, backward.context, backward.accumulated, gradient,
                            input);
  }
  at::Tensor wgrad = product(backward, Gemm::wgrad, gradient, input);
  return output_hooks(backward, Gemm::wgrad, std::move(wgrad)).to(backward.weight_dtype);
}

// The tensors of waiting operands that others have too. Codes are the layer's own.
std::vector<UnchangedTensor> shared_operands(const Operand& gradient, const Operand& input,
                                             const at::Tensor& grad_output) {
  std::vector<UnchangedTensor> shared;
  if (const auto* plain = std::get_if<at::Tensor>(&gradient)) {
    // Autograd gives a leaf the gradient itself as its .grad, unless the tensor is held: a view of
    // it is not enough.
    shared.emplace_back("the gradient of its output",
                        plain->is_alias_of(grad_output) ? grad_output : *plain);
  }
  if (const auto* plain = std::get_if<at::Tensor>(&input)) shared.emplace_back("its input", *plain);
  return shared;
}

// Leaves wgrad's product with the layer. What it holds of the layer would be a cycle.
void delay_weight_gradient(const LinearBackward& backward, Operand gradient, Operand input,
                           const at::Tensor& grad_output) {
  if (is_reduced_by_torch(backward.delayed_weight)) {
    raise<UsageError>(
        "{}: torch's DistributedDataParallel averages gradients in the backward, which "
        "delay_wgrad_compute leaves without this weight's, so each rank would train weights of its "
        "own; switch delay_wgrad_compute off, or keep the weight from DDP",
        backward.layer->name());
  }
  auto own = std::make_shared<LinearBackward>(backward);
  own->layer.reset();
  own->gradient_cast.reset();
  backward.layer->delayed_wgrads.put(
      [own, shared = shared_operands(gradient, input, grad_output), gradient = std::move(gradient),
       input = std::move(input)](const std::shared_ptr<GemmLayer>& layer) {
        for (const UnchangedTensor& each : shared) each.check(layer->name());
        own->layer = layer;
        at::Tensor wgrad;
        {
          const c10::impl::ExcludeDispatchKeyGuard no_torch_autocast(c10::autocast_dispatch_keyset);
          const at::AutoDispatchBelowADInplaceOrView below_autograd;
          wgrad = weight_gradient(*own, gradient, input);
        }
        deliver_gradient(own->delayed_weight, wgrad);
      });
}

Gradients compute_gradients(const LinearBackward& backward, const variable_list& saved,
                            const at::Tensor& grad_output) {
  OutputGradient gradient = output_gradient(backward, grad_output);
  Gradients gradients{.input = {}, .weight = {}, .bias = gradient.bias};
  std::optional<SavedInput> input;
  if (backward.needs.wgrad) input.emplace(backward, saved);
  std::optional<PendingDgrad> dgrad;
  if (backward.needs.dgrad) {
    dgrad.emplace(backward, gradient.first(), backward.weight.restore(saved));
  }
  if (input && backward.delayed_weight.defined()) {
    delay_weight_gradient(backward, gradient.second(), input->wait(), grad_output);
  } else if (input) {
    gradients.weight = weight_gradient(backward, gradient.second(), input->wait());
  }
  if (dgrad) gradients.input = dgrad->wait();
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
