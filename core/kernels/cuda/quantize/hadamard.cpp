// hadamard_transform on CUDA.
#include <ATen/ops/empty.h>
#include <torch/library.h>

#include "core/kernels/cuda/device.h"
#include "core/kernels/cuda/quantize/launchers.h"
#include "core/ops/block_quantize.h"

namespace telens::cuda {
namespace {

static_assert(kHadamardRows == ops::kHadamardSize);

at::Tensor hadamard_transform_cuda(const at::Tensor& x, std::int64_t signs, bool inverse) {
  ops::check_hadamard("hadamard_transform", x, signs);
  const FormatId format = ops::check_matrix("hadamard_transform", x);
  const DeviceScope scope("hadamard_transform", x);
  const at::Tensor contiguous = x.contiguous();
  at::Tensor result = at::empty(x.sizes(), x.options());
  const HadamardArguments arguments{contiguous.const_data_ptr(),
                                    result.mutable_data_ptr(),
                                    x.size(0),
                                    x.size(1),
                                    static_cast<std::uint32_t>(signs),
                                    inverse};
  check_launch("hadamard_transform", launch_hadamard_transform(arguments, format, scope.context()));
  return result;
}

}  // namespace
}  // namespace telens::cuda

TORCH_LIBRARY_IMPL(telens, CUDA, library) {
  library.impl("hadamard_transform", TORCH_FN(telens::cuda::hadamard_transform_cuda));
}
