#include "core/modules/layer/linear_checks.h"

#include <ATen/autocast_mode.h>

#include <algorithm>

namespace telens {

void check_dtypes(const std::string& layer, const ActivationMeta& input, const at::Tensor& weight) {
  const at::ScalarType dtype = input.scalar_type();
  if (dtype != at::kBFloat16 && dtype != at::kHalf && dtype != at::kFloat && dtype != at::kDouble) {
    raise<ShapeError>("{}: activation has dtype {}; expected BFloat16, Half, Float or Double",
                      layer, c10::toString(dtype));
  }
  if (weight.scalar_type() != dtype && !at::autocast::is_autocast_enabled(input.device().type())) {
    raise<ShapeError>(
        "{}: activation has dtype {} and weight {}; outside autocast they must be the same; "
        "convert one, or use autocast",
        layer, c10::toString(dtype), c10::toString(weight.scalar_type()));
  }
}

void check_shapes(const std::string& layer, const ActivationMeta& input, const at::Tensor& weight) {
  if (input.sizes().empty() || input.sizes().back() != weight.size(1)) {
    raise<ShapeError>("{}: activation has shape {}; expected [..., {}]", layer,
                      c10::str(input.sizes()), weight.size(1));
  }
  if (input.device() != weight.device()) {
    raise<ShapeError>("{}: activation is on {} and weight on {}; move one of them", layer,
                      input.device().str(), weight.device().str());
  }
}

void check_fp8_shapes(const std::string& layer, const ForwardContext& context,
                      const ActivationMeta& input, const at::Tensor& weight) {
  if (input.scalar_type() == at::kDouble) {
    raise<ShapeError>("{}: activation has dtype Double; FP8 accepts BFloat16, Half or Float",
                      layer);
  }
  std::int64_t alignment = 1;  // a custom recipe may leave tensors in high precision
  for (const TensorRole role : {TensorRole::input, TensorRole::weight, TensorRole::grad_output}) {
    const Quantizer* quantizer = context.quantizer(role);
    if (quantizer != nullptr) alignment = std::max(alignment, quantizer->alignment());
  }
  if (weight.size(0) % alignment != 0 || weight.size(1) % alignment != 0) {
    raise<ShapeError>(
        "{}: weight has shape {}; FP8 GEMMs require both dimensions to be multiples of {}. Change "
        "the layer's features or run it outside fp8_autocast. In a converted model, pass the "
        "recipe, which excludes such layers: te.convert(model, recipe=recipe)",
        layer, c10::str(weight.sizes()), alignment);
  }
}

void check_tensor_parallel(const std::string& layer, const TensorParallel& tensor_parallel) {
  if (tensor_parallel.size > 1 && tensor_parallel.group == nullptr) [[unlikely]] {
    raise<UsageError>(
        "{}: tp_size is {}, but tp_group is missing; call set_tensor_parallel_group before the "
        "first forward, or pass tp_group to the module",
        layer, tensor_parallel.size);
  }
}

void check_sequence(const std::string& layer, const LinearParallel& parallel,
                    const ActivationMeta& input) {
  if (!parallel.is_divided() || !parallel.sequence) return;
  if (input.sizes().size() < 2) {
    raise<ShapeError>(
        "{}: activation has shape {}; sequence_parallel divides the first dimension of at least "
        "two",
        layer, c10::str(input.sizes()));
  }
  if (parallel.mode == ParallelMode::row && input.sizes()[0] % parallel.size != 0) {
    raise<ShapeError>(
        "{}: activation has shape {}; sequence_parallel scatters its first dimension to {} ranks, "
        "which must divide it",
        layer, c10::str(input.sizes()), parallel.size);
  }
}

}  // namespace telens
