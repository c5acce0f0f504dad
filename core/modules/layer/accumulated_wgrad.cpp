#include "core/modules/layer/accumulated_wgrad.h"

#include <ATen/ops/cat.h>
#include <ATen/ops/zeros_like.h>

#include <algorithm>

#include "core/distributed/warn_once.h"
#include "core/modules/layer/gemm_with_hooks.h"
#include "core/modules/shared/main_grad.h"
#include "core/ops/tensor_version.h"

namespace telens {
namespace {

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

}  // namespace

std::vector<at::Tensor> get_parameters(const Weight& weight) {
  return weight.parts.empty() ? std::vector{weight.parameter} : weight.parts;
}

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

}  // namespace telens
