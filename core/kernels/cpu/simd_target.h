// The vector instructions that the CPU kernels use: the best of the processor, unless a test or
// a benchmark asks for others.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "core/base/error.h"

namespace telens::kernels {

// A set of vector instructions that the kernels are compiled for and this processor has.
struct SimdTarget {
  std::int64_t bit;  // Highway's HWY_AVX2 and so on
  std::string name;  // "AVX3" is AVX-512
};

// Best first; the last one is the compiler's baseline.
TELENS_EXPORT std::vector<SimdTarget> simd_targets();

// While it lives, all kernels of the process use the given target, on every thread. Do not nest,
// and do not run kernels while it is made or destroyed.
class TELENS_EXPORT ScopedSimdTarget {
 public:
  explicit ScopedSimdTarget(const SimdTarget& target);
  ~ScopedSimdTarget();
  ScopedSimdTarget(const ScopedSimdTarget&) = delete;
  ScopedSimdTarget& operator=(const ScopedSimdTarget&) = delete;
};

}  // namespace telens::kernels
