// torch's setting that allows FP32 operands of products on CUDA to be rounded to TF32.
#pragma once

#include <ATen/Context.h>

namespace telens::cuda {

namespace detail {

template <typename Context, typename Precision, typename Backend, typename Operation>
bool is_tf32(const Context& context, Precision (Context::*precision)(Backend, Operation) const) {
  return (context.*precision)(Backend::CUDA, Operation::MATMUL) == Precision::TF32;
}

// `context`: torch's. torch 2.8 has one setting for everything. Later versions have one per backend
// and operation, named by strings in 2.9 and by enumerators in newer versions. There the getter of
// 2.8 throws if products have a separate setting.
template <typename Context>
bool products_are_tf32(const Context& context) {
  if constexpr (requires { context.float32Precision("cuda", "matmul"); }) {
    return context.float32Precision("cuda", "matmul") == "tf32";
  } else if constexpr (requires { &Context::float32Precision; }) {
    return is_tf32(context, &Context::float32Precision);
  } else {
    return context.allowTF32CuBLAS();
  }
}

}  // namespace detail

inline bool allows_tf32() {
  return !at::NoTF32Guard::should_disable_tf32() && detail::products_are_tf32(at::globalContext());
}

}  // namespace telens::cuda
