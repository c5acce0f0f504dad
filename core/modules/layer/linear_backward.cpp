#include "core/modules/layer/linear_backward.h"

#include <utility>

#include "core/distributed/gather_operand.h"
#include "core/modules/layer/gemm_with_hooks.h"
#include "core/modules/shared/main_grad.h"
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
        backward.context.quantizes_by_parts(TensorRole::grad_output, grad.size(0));
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

}  // namespace

LinearGradients compute_gradients(const LinearBackward& backward, const variable_list& saved,
                                  const at::Tensor& grad_output) {
  OutputGradient gradient = output_gradient(backward, grad_output);
  LinearGradients gradients{.input = {}, .weight = {}, .bias = gradient.bias};
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

}  // namespace telens
