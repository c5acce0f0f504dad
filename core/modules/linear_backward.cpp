#include "core/modules/linear_backward.h"

#include <utility>

#include "core/distributed/gather_operand.h"
#include "core/modules/gemm_with_hooks.h"
#include "core/modules/main_grad.h"
#include "core/ops/gemm.h"

namespace telens {
namespace {

using torch::autograd::variable_list;

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
                        backward.context.modifies(gemm, TensorName::gradient)};
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
  at::Tensor grad = as_matrix(grad_output).contiguous();
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

// wgrad's activation: the saved one, or the rows of all ranks, whose gather begins here.
class SavedInput {
 public:
  SavedInput(const LinearBackward& backward, const variable_list& saved)
      : own_(backward.input.restore(saved)) {
    if (!backward.input_is_shard) return;
    const bool modified = backward.context.modifies(Gemm::wgrad, TensorName::activation);
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
  if (backward.accumulated_weight.defined()) return accumulate_wgrad(backward, gradient, input);
  at::Tensor wgrad = product(backward, Gemm::wgrad, gradient, input);
  return output_hooks(backward, Gemm::wgrad, std::move(wgrad)).to(backward.weight_dtype);
}

}  // namespace

SavedOperand::SavedOperand(const Operand& operand, variable_list& saved) : index_(saved.size()) {
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

Operand SavedOperand::restore(const variable_list& saved) const {
  if (!quantized_) return saved[index_];
  QuantizedTensor quantized = *quantized_;
  quantized.columnwise = {saved[index_], saved[index_ + 1],
                          has_tensor_scale_ ? saved[index_ + 2] : at::Tensor()};
  return quantized;
}

LinearGradients linear_gradients(const LinearBackward& backward, const variable_list& saved,
                                 const at::Tensor& grad_output) {
  OutputGradient gradient = output_gradient(backward, grad_output);
  LinearGradients gradients{.input = {}, .weight = {}, .bias = gradient.bias};
  std::optional<SavedInput> input;
  if (backward.needs.wgrad) input.emplace(backward, saved);
  std::optional<PendingDgrad> dgrad;
  if (backward.needs.dgrad) {
    dgrad.emplace(backward, gradient.first(), backward.weight.restore(saved));
  }
  if (input) gradients.weight = weight_gradient(backward, gradient.second(), input->wait());
  if (dgrad) gradients.input = dgrad->wait();
  return gradients;
}

}  // namespace telens
