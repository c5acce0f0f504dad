// dequantize_blocks on CUDA.
#include <ATen/ops/empty.h>
#include <torch/library.h>

#include "core/kernels/cuda/blocks/block_tensors.h"
#include "core/kernels/cuda/device.h"
#include "core/kernels/cuda/quantize/launchers.h"
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

  const auto memory = CodesInMemory::of(codes);
  const CodedMatrix matrix = coded_matrix(memory, scale_inv, tensor_scale, scaling);
  const at::Tensor values = at::empty({matrix.rows, matrix.columns}, codes.options().dtype(dtype));
  check_launch("dequantize_blocks",
               launch_dequantize_blocks({matrix, values.mutable_data_ptr()}, element, scaling,
                                        output, scope.context()));
  return memory.transposed ? values.t() : values;
}

}  // namespace
}  // namespace telens::cuda

TORCH_LIBRARY_IMPL(telens, CUDA, library) {
  library.impl("dequantize_blocks", TORCH_FN(telens::cuda::dequantize_blocks_cuda));
}
