// dequantize_blocks on CUDA.
#include <ATen/ops/empty.h>
#include <torch/library.h>

#include "core/kernels/cuda/block_tensors.h"
#include "core/kernels/cuda/device.h"
#include "core/kernels/cuda/launchers.h"
#include "core/ops/block_quantize_checks.h"
#include "core/ops/checks.h"

namespace telens::cuda {
namespace {

at::Tensor dequantize_blocks_cuda(const at::Tensor& codes, const at::Tensor& scale_inv,
                                  const std::optional<at::Tensor>& given_tensor_scale,
                                  std::int64_t format, std::int64_t mode, at::ScalarType dtype) {
  const at::Tensor tensor_scale = given_tensor_scale.value_or(at::Tensor());
  const auto [element, scaling] =
      ops::check_block_codes("dequantize_blocks", {codes, scale_inv, tensor_scale}, format, mode);
  const FormatId output = ops::check_high_precision("dequantize_blocks", "the result", dtype);
  check_same_device("dequantize_blocks", {codes, scale_inv, tensor_scale});
  const DeviceScope scope("dequantize_blocks", codes);

  const bool transposed = ops::is_transposed(codes);
  const at::Tensor in_memory = transposed ? codes.t() : codes.contiguous();
  const bool packed = scaling == ScalingMode::nvfp4;
  const at::Tensor values = at::empty({in_memory.size(0) * (packed && transposed ? 2 : 1),
                                       in_memory.size(1) * (packed && !transposed ? 2 : 1)},
                                      codes.options().dtype(dtype));
  const BlockDequantizeArguments arguments =
      dequantize_arguments({in_memory, values, transposed}, scale_inv, tensor_scale, scaling);
  check_launch("dequantize_blocks",
               launch_dequantize_blocks(arguments, element, scaling, output, scope.context()));
  return transposed ? values.t() : values;
}

}  // namespace
}  // namespace telens::cuda

TORCH_LIBRARY_IMPL(telens, CUDA, library) {
  library.impl("dequantize_blocks", TORCH_FN(telens::cuda::dequantize_blocks_cuda));
}
