#include "core/kernels/cuda/gemm/tf32.h"

#include <ATen/Context.h>

namespace telens::cuda {

bool allows_tf32() {
  return !at::NoTF32Guard::should_disable_tf32() && detail::products_are_tf32(at::globalContext());
}

}  // namespace telens::cuda
