// Device code. Functions that the GPU approximates in one instruction each, for results that are
// rounded to 16 bits afterwards. Errors are quoted from the PTX ISA manual, "ex2" and "rcp".
#pragma once

#include <cmath>

#include "core/kernels/cuda/thread.cuh"

namespace telens::cuda {

struct Approximations {
  // 2^x with a relative error of at most 2^-22; 0 if the result is below 2^-126.
  static TELENS_DEVICE float exp2(float x) {
#if defined(__CUDA_ARCH__)
    float result;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(x));
    return result;
#else
    return std::exp2(x);
#endif
  }

  // 1 / x with a relative error of at most 2^-23; 0 if the result is below 2^-126.
  static TELENS_DEVICE float reciprocal(float x) {
#if defined(__CUDA_ARCH__)
    float result;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(x));
    return result;
#else
    return 1.0F / x;
#endif
  }
};

// a * b + c, rounded once.
TELENS_DEVICE float multiply_add(float a, float b, float c) {
#if defined(__CUDA_ARCH__)
  return __fmaf_rn(a, b, c);
#else
  return std::fma(a, b, c);
#endif
}

}  // namespace telens::cuda
