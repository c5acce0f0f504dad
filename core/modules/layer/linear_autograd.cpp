#include "core/modules/layer/linear_autograd.h"

#include <ATen/ops/cat.h>
#include <torch/csrc/autograd/custom_function.h>

#include <utility>

#include "core/distributed/gather_operand.h"
#include "core/modules/layer/gemm_with_hooks.h"
#include "core/modules/layer/overlap.h"
#include "core/modules/shared/autograd_utils.h"
#include "core/ops/gemm.h"
#include "core/quantization/quantized_payload.h"
#include "core/quantization/quantized_tensor.h"

namespace telens {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// Returns the bias that the GEMM adds, as the output hooks see it.
at::Tensor bias_for_gemm(const at::Tensor& bias, const Operand& activation, at::ScalarType dtype) {
  if (!bias.defined()) return {};
  const at::Tensor typed = bias.to(dtype);
  return is_quantized(activation) ? ops::bias_of_16_bits(typed).to(dtype) : typed;
}

class LinearFunction : public torch::autograd::Function<LinearFunction> {
 public:
  static at::Tensor forward(AutogradContext* autograd, const at::Tensor& input,
                            const at::Tensor& weight, const std::optional<at::Tensor>& bias,
                            const LinearArguments* arguments, GradientNeeds needs);
  static variable_list backward(AutogradContext* autograd, variable_list grad_outputs);
};

// Returns how the layer is divided in this call. If the whole input is given, a column layer sends
// nothing.
LinearParallel parallel_in(const LinearArguments& arguments) {
  return arguments.call.input_is_whole ? LinearParallel() : arguments.layer->parallel;
}

// The operands of the activation.
struct ActivationOperands {
  Operand first;            // for fprop: all rows
  Operand second;           // for wgrad
  bool is_shard = false;    // `second` contains only this rank's rows
  bool takes_ring = false;  // `first` too: other rows arrive during fprop
};

void save_for_backward(LinearForward& forward, const LinearArguments& arguments,
                       const LinearParallel& parallel, GradientNeeds needs,
                       const ActivationOperands& input, const std::vector<GemmOperands>& weights) {
  auto backward = c10::make_intrusive<LinearBackward>();
  variable_list& saved = forward.saved;
  if (needs.wgrad) backward->input = SavedOperand(input.second, saved);
  backward->input_is_shard = input.is_shard;
  backward->parallel = parallel;
  if (needs.dgrad) {
    for (const GemmOperands& each : weights) backward->weights.emplace_back(each.second, saved);
  }
  backward->layer = arguments.layer;
  backward->context = arguments.context;
  backward->context.recomputation = false;  // gradients are observed once
  backward->needs = needs;
  backward->fp8_grad = arguments.call.fp8_grad;
  backward->input_sizes = arguments.input.sizes().vec();
  backward->dtype = arguments.input.scalar_type();
  backward->weight_dtype = arguments.weight.parameter.scalar_type();
  if (needs.wgrad && arguments.call.accumulates_wgrad) {
    backward->accumulated = {.weights = get_parameters(arguments.weight),
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
  forward.backward = std::move(backward);
}

// Builds the operands of the given activation.
GemmOperands given_operands(const LinearArguments& arguments, GradientNeeds needs) {
  if (arguments.codes != nullptr) return {*arguments.codes, *arguments.codes};
  const at::Tensor& input = arguments.input;
  std::optional<QuantizedTensor> carried;
  if (arguments.carried != nullptr) carried = flatten_to_matrix(*arguments.carried);
  const bool has_values = !carried || !is_quantized_handle(input);
  return quantize_operand(*arguments.layer, arguments.context,
                          {.tensor_name = TensorName::activation,
                           .tensor = has_values ? as_matrix(input) : at::Tensor(),
                           .dtype = input.scalar_type(),
                           .second_needed = needs.wgrad,
                           .gathered = arguments.call.input_is_whole,
                           .codes = carried ? &*carried : nullptr});
}

OperandShard activation_shard(const LinearArguments& arguments, const LinearParallel& parallel,
                              const Operand& rows) {
  return {rows, parallel.group, arguments.layer->name(),
          arguments.context.modifies(Gemm::fprop, TensorName::activation)};
}

// Gathers codes: in the forward for fprop, in the backward for wgrad, which saves only this rank's.
// If a scale block would span two ranks, gathers values and quantizes them.
ActivationOperands activation_operands(const LinearArguments& arguments,
                                       const LinearParallel& parallel, GradientNeeds needs,
                                       bool overlaps) {
  if (!parallel.gathers_input()) {
    GemmOperands operands = given_operands(arguments, needs);
    return {std::move(operands.first), std::move(operands.second)};
  }
  const std::int64_t columns = arguments.input.size(-1);
  const std::int64_t rows = columns == 0 ? 0 : arguments.input.numel() / columns;
  if (!arguments.context.quantizes_by_parts(TensorRole::input, rows)) {
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
  if (overlaps) return {std::move(own.first), std::move(own.second), true, true};
  Operand whole = gather_rowwise(activation_shard(arguments, parallel, own.first)).wait();
  return {std::move(whole), std::move(own.second), /*is_shard=*/true};
}

// Returns fprop's product; sums it over ranks for a row layer.
at::Tensor fprop_product(const LinearArguments& arguments, const LinearParallel& parallel,
                         const ActivationOperands& activation,
                         const std::optional<OverlapSettings>& overlap,
                         const GemmDescription& description) {
  GemmLayer& layer = *arguments.layer;
  const ForwardContext& context = arguments.context;
  if (activation.takes_ring) {
    return gemm_beside_gather(layer, context, description,
                              activation_shard(arguments, parallel, activation.first));
  }
  if (overlap && parallel.sums_output()) {
    return gemm_beside_scatter(layer, context, description, *overlap, parallel.group);
  }
  std::optional<GemmOverlapNote> note;
  if (parallel.overlap) {
    const auto values = static_cast<std::int64_t>(arguments.input.nbytes());
    note = NotedGemm{parallel, context, Gemm::fprop}.of_gathered_values(values);
  }
  const at::Tensor product = gemm_with_inspection(layer, context, description, or_null(note));
  return parallel.sums_output() ? parallel.sum(product).wait() : product;
}

// Adds the bias of a row layer and calls the output hooks.
at::Tensor finish_output(const LinearArguments& arguments, const LinearParallel& parallel,
                         at::Tensor product, const at::Tensor& bias) {
  if (parallel.adds_bias_to_sum() && bias.defined()) product.add_(bias);
  return run_output_hooks(*arguments.layer, arguments.context, Gemm::fprop, bias,
                          std::move(product));
}

// Multiplies with each part of a weight and concatenates the products.
at::Tensor product_of_parts(const LinearArguments& arguments, const LinearParallel& parallel,
                            const Operand& activation, const std::vector<GemmOperands>& weights,
                            const at::Tensor& bias) {
  const ForwardContext& context = arguments.context;
  std::vector<at::Tensor> products;
  std::int64_t first = 0;
  for (const GemmOperands& weight : weights) {
    const std::int64_t rows = get_rows(weight.first);
    const at::Tensor added = bias.defined() ? bias.narrow(0, first, rows) : bias;
    products.push_back(
        gemm_with_inspection(*arguments.layer, context,
                             {.gemm = Gemm::fprop,
                              .a = activation,
                              .b = weight.first,
                              .bias = added,
                              .out_dtype = arguments.input.scalar_type(),
                              .layer = arguments.layer->name(),
                              .split_accumulator = context.uses_split_accumulator(Gemm::fprop)}));
    first += rows;
  }
  const at::Tensor product = at::cat(products, 1);
  return parallel.sums_output() ? parallel.sum(product).wait() : product;
}

at::Tensor LinearFunction::forward(AutogradContext* autograd, const at::Tensor&, const at::Tensor&,
                                   const std::optional<at::Tensor>&,
                                   const LinearArguments* arguments, GradientNeeds needs) {
  const at::AutoDispatchBelowADInplaceOrView below_autograd;
  LinearForward forward = run_linear(*arguments, needs);
  if (forward.backward) {
    autograd->save_for_backward(std::move(forward.saved));
    autograd->saved_data["linear"] = c10::IValue::make_capsule(std::move(forward.backward));
  }
  return forward.output;
}

variable_list compute_gradients(AutogradContext* autograd, const variable_list& grad_outputs) {
  const auto holder = autograd->saved_data["linear"].toCapsule();
  const auto& backward = static_cast<const LinearBackward&>(*holder);
  check_no_second_derivative(backward.layer->name());
  const c10::impl::ExcludeDispatchKeyGuard no_torch_autocast(c10::autocast_dispatch_keyset);
  const variable_list saved = autograd->get_saved_variables();  // a checkpoint recomputes here
  // Nothing below is differentiable. Above autograd each operator would be called with boxed
  // arguments.
  const at::AutoDispatchBelowADInplaceOrView below_autograd;
  const LinearGradients gradients = naming_layer(
      backward.layer->name(), [&] { return compute_gradients(backward, saved, grad_outputs[0]); });
  if (backward.context.first_in_region) backward.context.region->update(/*backward=*/true);
  return {gradients.input, gradients.weight, gradients.bias, at::Tensor(), at::Tensor()};
}

variable_list LinearFunction::backward(AutogradContext* autograd, variable_list grad_outputs) {
  return translating_errors([&] { return compute_gradients(autograd, grad_outputs); });
}

}  // namespace

LinearForward run_linear(const LinearArguments& arguments, GradientNeeds needs) {
  GemmLayer& layer = *arguments.layer;
  const ForwardContext& context = arguments.context;
  const at::Tensor& input = arguments.input;
  const at::ScalarType dtype = input.scalar_type();

  const LinearParallel parallel = parallel_in(arguments);
  // Products of a split weight do not overlap.
  std::optional<OverlapSettings> overlap;
  if (parallel.overlap && arguments.weight.stored_parts.empty()) {
    overlap = parallel.overlap->settings(Gemm::fprop, context.quantizes(), layer.name());
  }
  const ActivationOperands activation =
      activation_operands(arguments, parallel, needs, overlap.has_value());
  const std::vector<GemmOperands> weights =
      weight_operands(layer, context, arguments.weight, arguments.call.is_first_microbatch,
                      {.tensor_name = TensorName::weight,
                       .tensor = arguments.weight.parameter,
                       .dtype = dtype,
                       .second_needed = needs.dgrad});
  const at::Tensor typed_bias = bias_for_gemm(arguments.bias, activation.first, dtype);
  const at::Tensor added = parallel.adds_bias_to_sum() ? at::Tensor() : typed_bias;
  at::Tensor output =
      weights.size() > 1
          ? product_of_parts(arguments, parallel, activation.first, weights, added)
          : fprop_product(arguments, parallel, activation, overlap,
                          {.gemm = Gemm::fprop,
                           .a = activation.first,
                           .b = weights[0].first,
                           .bias = added,
                           .out_dtype = dtype,
                           .layer = layer.name(),
                           .split_accumulator = context.uses_split_accumulator(Gemm::fprop)});
  output = finish_output(arguments, parallel, std::move(output), typed_bias);
  LinearForward forward;
  if (needs.any()) save_for_backward(forward, arguments, parallel, needs, activation, weights);
  std::vector<std::int64_t> sizes = input.sizes().vec();
  if (parallel.gathers_input()) sizes[0] *= parallel.size;
  if (parallel.gathers_gradient()) sizes[0] /= parallel.size;  // the sum is scattered
  sizes.back() = output.size(1);
  const Quantizer* quantizer =
      arguments.call.fp8_output ? context.quantizer(TensorRole::output) : nullptr;
  forward.output = quantizer != nullptr ? quantized_output(output, sizes, *quantizer, needs.any())
                   : input.dim() == 2   ? output
                                        : output.view(sizes);
  return forward;
}

at::Tensor apply_linear(const LinearArguments& arguments) {
  const c10::impl::ExcludeDispatchKeyGuard no_torch_autocast(c10::autocast_dispatch_keyset);
  const GradientNeeds needs{wants_gradient(arguments.input),
                            wants_gradient(arguments.weight.parameter),
                            wants_gradient(arguments.bias)};
  // Autograd functions do not accept undefined tensors.
  const auto bias = arguments.bias.defined() ? std::optional(arguments.bias) : std::nullopt;
  return LinearFunction::apply(arguments.input, arguments.weight.parameter, bias, &arguments,
                               needs);
}

}  // namespace telens
