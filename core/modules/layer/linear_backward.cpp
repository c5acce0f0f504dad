#include "core/modules/layer/linear_autograd.h"

#include <ATen/ops/cat.h>
#include <ATen/ops/zeros_like.h>

#include <algorithm>
#include <utility>

#include "core/distributed/gather_operand.h"
#include "core/distributed/warn_once.h"
#include "core/modules/layer/gemm_with_hooks.h"
#include "core/modules/layer/overlap.h"
#include "core/modules/shared/main_grad.h"
#include "core/ops/gemm.h"
#include "core/ops/torch_internals.h"
#include "core/quantization/quantized_payload.h"
#include "core/quantization/quantized_tensor.h"

namespace telens {
namespace {

using torch::autograd::variable_list;

std::vector<MainGrad> main_grads(const AccumulatedWgrad& target, const std::string& layer) {
  std::vector<MainGrad> found;
  for (const at::Tensor& weight : target.weights) found.push_back(get_main_grad(weight, layer));
  return found;
}

bool gemm_can_add(const std::vector<MainGrad>& targets) {
  return targets.size() == 1 && targets.front().buffer.scalar_type() == at::kFloat;
}

void add_rows(const std::vector<MainGrad>& targets, const at::Tensor& wgrad) {
  std::int64_t row = 0;
  for (const MainGrad& target : targets) {
    const std::int64_t rows = target.buffer.size(0);
    // Computed in FP32, rounded to the buffer's dtype.
    at::Tensor buffer = target.buffer;
    buffer.add_(wgrad.narrow(0, row, rows));
    row += rows;
  }
}

// Returns the gradient of the joined weight: zeros if code requires a gradient of a part.
at::Tensor placeholder_gradient_of_parts(const std::vector<MainGrad>& targets,
                                         const std::vector<at::Tensor>& weights) {
  std::vector<at::Tensor> gradients;
  for (std::size_t i = 0; i < weights.size(); ++i) {
    gradients.push_back(placeholder_gradient(targets[i], weights[i]));
  }
  const auto defined = [](const at::Tensor& gradient) { return gradient.defined(); };
  if (std::ranges::none_of(gradients, defined)) return {};
  if (gradients.size() == 1) return gradients.front();
  for (std::size_t i = 0; i < weights.size(); ++i) {
    if (!gradients[i].defined()) gradients[i] = at::zeros_like(weights[i].detach());
  }
  return at::cat(gradients, 0);
}

// Computes wgrad, adds it to the parameters' main_grad, and returns the gradient for autograd:
// zeros or undefined. The GEMM adds directly into a single FP32 buffer. For several buffers, BF16
// and FP16, an FP32 product is added and rounded once. The same happens if the session may ever
// inspect this layer's wgrad, in every iteration, so that inspecting changes no bit.
at::Tensor accumulate_wgrad(GemmLayer& layer, const ForwardContext& context,
                            const AccumulatedWgrad& target, const Operand& gradient,
                            const Operand& input, const GemmOverlapNote* overlap) {
  const std::vector<MainGrad> targets = main_grads(target, layer.name());
  if (target.dtype == at::kDouble) {
    raise<UsageError>(
        "{}: fuse_wgrad_accumulation adds in FP32 and the layer computes in Double; switch it off",
        layer.name());
  }
  for (const MainGrad& each : targets) {
    at::Tensor buffer = each.buffer;
    if (each.overwrite || target.overwrite) buffer.zero_();
  }
  const bool can_add = gemm_can_add(targets);
  const bool product_first = !can_add || layer.hooks.may_watch_wgrad();
  const at::Tensor wgrad =
      gemm_with_hooks(layer, context,
                      {.gemm = Gemm::wgrad,
                       .a = gradient,
                       .b = input,
                       .bias = {},
                       .out_dtype = product_first ? at::kFloat : target.dtype,
                       .layer = layer.name(),
                       .accumulate_into = product_first ? at::Tensor() : targets.front().buffer,
                       .split_accumulator = context.uses_split_accumulator(Gemm::wgrad),
                       .operand_dtype = target.dtype},
                      overlap);
  if (product_first && can_add) {
    warn_once(
        "while a debug session runs, layers with fuse_wgrad_accumulation whose wgrad it may watch "
        "make it and add it to main_grad in two steps; otherwise that is one step, and the last "
        "bits of main_grad may differ",
        ShownBy::this_rank);  // the first rank may lack the layer
  }
  if (product_first) add_rows(targets, wgrad);
  for (const MainGrad& each : targets) bump_version(each.buffer);
  return placeholder_gradient_of_parts(targets, target.weights);
}

GemmDescription describe_gemm(const LinearBackward& backward, Gemm gemm, const Operand& left,
                              const Operand& right) {
  static const at::Tensor no_bias;
  return {.gemm = gemm,
          .a = left,
          .b = right,
          .bias = no_bias,
          .out_dtype = backward.dtype,
          .layer = backward.layer->name(),
          .split_accumulator = backward.context.uses_split_accumulator(gemm)};
}

// Products of a split weight do not overlap.
std::optional<OverlapSettings> dgrad_overlap(const LinearBackward& backward) {
  if (!backward.parallel.overlap || backward.weights.size() > 1) return std::nullopt;
  return backward.parallel.overlap->settings(Gemm::dgrad, backward.context.quantizes(),
                                             backward.layer->name());
}

// Returns the note of the collective that runs during wgrad: the sum of dgrad, or a gather that
// began before dgrad.
std::optional<GemmOverlapNote> note_of_wgrad(const LinearBackward& backward,
                                             std::int64_t gathered_bytes) {
  const bool column = backward.parallel.mode == ParallelMode::column;
  if (!backward.needs.dgrad || (!column && gathered_bytes == 0)) return std::nullopt;
  const std::int64_t dgrad_bytes = c10::multiply_integers(backward.input_sizes) *
                                   backward.parallel.size *
                                   static_cast<std::int64_t>(c10::elementSize(backward.dtype));
  return NotedGemm{backward.parallel, backward.context, Gemm::wgrad}.beside(
      column ? dgrad_bytes : gathered_bytes);
}

// Each part multiplies its columns of the gradient. The sum is rounded once.
at::Tensor dgrad_of_parts(const LinearBackward& backward, const Operand& gradient,
                          const variable_list& saved) {
  at::Tensor sum;
  std::int64_t first = 0;
  for (const SavedOperand& saved_part : backward.weights) {
    const Operand part = saved_part.restore(saved);
    const std::int64_t rows = get_rows(part);
    const Operand columns = get_columns(gradient, first, rows);
    GemmDescription description = describe_gemm(backward, Gemm::dgrad, columns, part);
    description.out_dtype = backward.dtype == at::kDouble ? at::kDouble : at::kFloat;
    description.operand_dtype = backward.dtype;
    const at::Tensor of_part = gemm_with_inspection(*backward.layer, backward.context, description);
    sum = sum.defined() ? sum.add_(of_part) : of_part;
    first += rows;
  }
  return sum.to(backward.dtype);
}

at::Tensor output_hooks(const LinearBackward& backward, Gemm gemm, at::Tensor output) {
  return run_output_hooks(*backward.layer, backward.context, gemm, {}, std::move(output));
}

// The gradient of the output, as GEMM operands and for the bias. Gathered operands are awaited at
// their first use.
struct OutputGradient {
  GemmOperands operands;
  at::Tensor bias;
  PendingOperand whole_first = {};
  PendingOperand whole_second = {};
  bool takes_ring = false;  // operands.first has this rank's rows; the others arrive during dgrad
  // Bytes sent by this rank: values gathered before both GEMMs, and wgrad's operand.
  std::int64_t bytes_of_values = 0;
  std::int64_t bytes_of_second = 0;

  Operand first() { return whole_first ? whole_first.wait() : operands.first; }
  Operand second() { return whole_second ? whole_second.wait() : operands.second; }
};

OperandShard gradient_shard(const LinearBackward& backward, Gemm gemm, const Operand& rows) {
  return {rows, backward.parallel.group, backward.layer->name(),
          backward.context.modifies(gemm, TensorName::gradient)};
}

void gather(OutputGradient& gradient, const LinearBackward& backward) {
  gradient.takes_ring = backward.needs.dgrad && dgrad_overlap(backward).has_value();
  if (backward.needs.dgrad && !gradient.takes_ring) {
    gradient.whole_first =
        gather_rowwise(gradient_shard(backward, Gemm::dgrad, gradient.operands.first));
  }
  if (backward.needs.wgrad) {
    gradient.bytes_of_second = bytes_of_rows(gradient.operands.second, /*columnwise=*/true);
    gradient.whole_second =
        gather_columnwise(gradient_shard(backward, Gemm::wgrad, gradient.operands.second));
  }
}

// Returns the payload of grad_output (fp8_grad) if it is reusable.
std::optional<QuantizedTensor> reusable_gradient(const LinearBackward& backward,
                                                 const at::Tensor& grad_output) {
  const Quantizer* quantizer = backward.context.quantizer(TensorRole::grad_output);
  const QuantizedTensor* codes = find_reusable(grad_output, quantizer);
  return codes != nullptr ? std::optional(flatten_to_matrix(*codes)) : std::nullopt;
}

// Returns the fused gradient of the next layer's backward if present, else quantizes grad_output.
OutputGradient output_gradient(const LinearBackward& backward, const at::Tensor& grad_output) {
  if (const FusedGradient* fused = fused_gradient(grad_output)) {
    return {.operands = {fused->codes, fused->codes}, .bias = fused->bias};
  }
  if (backward.gradient_cast && backward.gradient_cast->scale) {
    raise<UsageError>(
        "{}: the gradient of its output was replaced between two backward functions of a "
        "module; use separate modules for its parts to change gradients between them",
        backward.layer->name());
  }
  at::Tensor grad = as_matrix(grad_output).contiguous();
  OutputGradient gradient;
  // A row layer adds its bias after the sum, so the bias gradient covers this rank's rows.
  if (backward.needs.bias) gradient.bias = ops::bias_gradient(grad, backward.bias_dtype);
  if (backward.needs.dgrad || backward.needs.wgrad) {
    const bool gathers = backward.parallel.gathers_gradient();
    const bool by_parts =
        backward.context.quantizes_by_parts(TensorRole::grad_output, grad.size(0));
    if (gathers && !by_parts) {
      gradient.bytes_of_values = static_cast<std::int64_t>(grad.nbytes());
      grad = gather_rows(grad, backward.parallel.group).wait();
    }
    const std::optional<QuantizedTensor> carried =
        gathers ? std::nullopt : reusable_gradient(backward, grad_output);
    gradient.operands = quantize_operand(*backward.layer, backward.context,
                                         {.tensor_name = TensorName::gradient,
                                          .tensor = grad,
                                          .dtype = backward.dtype,
                                          .first_needed = backward.needs.dgrad,
                                          .second_needed = backward.needs.wgrad,
                                          .gathered = gathers && !by_parts,
                                          .codes = carried ? &*carried : nullptr});
    if (gathers && by_parts) gather(gradient, backward);
  }
  return gradient;
}

// wgrad's activation: the saved one, or the rows of every rank, whose gather starts here.
class SavedInput {
 public:
  SavedInput(const LinearBackward& backward, const variable_list& saved)
      : own_(backward.input.restore(saved)) {
    if (!backward.input_is_shard) return;
    const bool modified = backward.context.modifies(Gemm::wgrad, TensorName::activation);
    whole_ = gather_columnwise({own_, backward.parallel.group, backward.layer->name(), modified});
  }

  Operand wait() { return whole_ ? whole_.wait() : own_; }

  // Bytes that this rank sends.
  std::int64_t bytes() const { return whole_ ? bytes_of_rows(own_, /*columnwise=*/true) : 0; }

 private:
  Operand own_;
  PendingOperand whole_;
};

// The gradient of the input, possibly still being summed over ranks. Output hooks wait for the sum;
// otherwise wgrad runs meanwhile.
class PendingDgrad {
 public:
  // sent_meanwhile: the bytes that this rank sends of wgrad's input.
  PendingDgrad(const LinearBackward& backward, OutputGradient& gradient, const variable_list& saved,
               std::int64_t sent_meanwhile)
      : backward_(backward), sum_(begin(backward, gradient, saved, sent_meanwhile)) {
    if (has_output_hooks(backward.context, Gemm::dgrad)) {
      sum_ = PendingTensor(output_hooks(backward, Gemm::dgrad, sum_.wait()));
    }
  }

  at::Tensor wait() {
    const Quantizer* quantizer =
        backward_.fp8_grad ? backward_.context.quantizer(TensorRole::grad_input) : nullptr;
    const at::Tensor dgrad = sum_.wait();
    if (quantizer == nullptr) return dgrad.view(backward_.input_sizes);
    return quantized_output(dgrad, backward_.input_sizes, *quantizer, /*trains=*/true);
  }

 private:
  static PendingTensor begin(const LinearBackward& backward, OutputGradient& gradient,
                             const variable_list& saved, std::int64_t sent_meanwhile) {
    const Operand left = gradient.first();
    if (backward.weights.size() > 1) {
      const at::Tensor dgrad = dgrad_of_parts(backward, left, saved);
      return backward.parallel.sums_dgrad() ? backward.parallel.sum(dgrad) : PendingTensor(dgrad);
    }
    const Operand weight = backward.weights[0].restore(saved);
    const GemmDescription description = describe_gemm(backward, Gemm::dgrad, left, weight);
    const auto overlap = dgrad_overlap(backward);
    if (gradient.takes_ring) {
      return PendingTensor(gemm_beside_gather(*backward.layer, backward.context, description,
                                              gradient_shard(backward, Gemm::dgrad, left)));
    }
    if (overlap && overlap->is_reduce_scatter) {
      return PendingTensor(gemm_beside_scatter(*backward.layer, backward.context, description,
                                               *overlap, backward.parallel.group));
    }
    const NotedGemm gemm{backward.parallel, backward.context, Gemm::dgrad};
    auto note = gemm.of_gathered_values(gradient.bytes_of_values);
    if (!note && sent_meanwhile != 0) note = gemm.beside(sent_meanwhile);
    const at::Tensor dgrad =
        gemm_with_inspection(*backward.layer, backward.context, description, or_null(note));
    return backward.parallel.sums_dgrad() ? backward.parallel.sum(dgrad) : PendingTensor(dgrad);
  }

  const LinearBackward& backward_;
  PendingTensor sum_;
};

at::Tensor weight_gradient(const LinearBackward& backward, const Operand& gradient,
                           const Operand& input, const std::optional<GemmOverlapNote>& note) {
  if (backward.accumulated) {
    return accumulate_wgrad(*backward.layer, backward.context, backward.accumulated, gradient,
                            input, or_null(note));
  }
  at::Tensor wgrad =
      gemm_with_inspection(*backward.layer, backward.context,
                           describe_gemm(backward, Gemm::wgrad, gradient, input), or_null(note));
  return output_hooks(backward, Gemm::wgrad, std::move(wgrad)).to(backward.weight_dtype);
}

// Returns the operands of a delayed GEMM that other code can modify, such as the payload of the
// input.
std::vector<UnchangedTensor> shared_operands(const Operand& gradient, const Operand& input,
                                             const at::Tensor& grad_output) {
  std::vector<UnchangedTensor> shared;
  if (const auto* plain = std::get_if<at::Tensor>(&gradient)) {
    // Autograd may use the gradient tensor itself as .grad of a leaf unless a reference to it
    // exists; a view is not enough.
    shared.emplace_back("the gradient of its output",
                        plain->is_alias_of(grad_output) ? grad_output : *plain);
  }
  const auto* codes = std::get_if<QuantizedTensor>(&input);
  shared.emplace_back("its input", codes ? codes->columnwise.codes : std::get<at::Tensor>(input));
  return shared;
}

// Adds wgrad's GEMM to the layer's pending products. References back to the layer would be a cycle.
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
          wgrad = weight_gradient(*own, gradient, input, std::nullopt);
        }
        return DelayedWgrad{own->delayed_weight, std::move(wgrad)};
      });
}

}  // namespace

std::vector<at::Tensor> get_parameters(const Weight& weight) {
  return weight.parts.empty() ? std::vector{weight.parameter} : weight.parts;
}

SavedOperand::SavedOperand(const Operand& operand, std::vector<at::Tensor>& saved)
    : index_(saved.size()) {
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

Operand SavedOperand::restore(const std::vector<at::Tensor>& saved) const {
  if (!quantized_) return saved[index_];
  QuantizedTensor quantized = *quantized_;
  quantized.columnwise = {saved[index_], saved[index_ + 1],
                          has_tensor_scale_ ? saved[index_ + 2] : at::Tensor()};
  return quantized;
}

LinearGradients compute_gradients(const LinearBackward& backward, const variable_list& saved,
                                  const at::Tensor& grad_output) {
  OutputGradient gradient = output_gradient(backward, grad_output);
  LinearGradients gradients{.input = {}, .weight = {}, .bias = gradient.bias};
  std::optional<SavedInput> input;
  if (backward.needs.wgrad) input.emplace(backward, saved);
  std::optional<PendingDgrad> dgrad;
  if (backward.needs.dgrad) {
    dgrad.emplace(backward, gradient, saved, input ? input->bytes() : 0);
  }
  if (input && backward.delayed_weight.defined()) {
    delay_weight_gradient(backward, gradient.second(), input->wait(), grad_output);
  } else if (input) {
    gradients.weight = weight_gradient(backward, gradient.second(), input->wait(),
                                       note_of_wgrad(backward, gradient.bytes_of_second));
  }
  if (dgrad) gradients.input = dgrad->wait();
  return gradients;
}

}  // namespace telens
