// The vector instructions that the CPU kernels use: the best of the processor, unless a test or a
// benchmark selects others.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "core/base/error.h"

namespace telens::kernels {

// A set of vector instructions for which the kernels are compiled and which this processor has.
struct SimdTarget {
  std::int64_t bit;  // Highway's HWY_AVX2 and so on
  std::string name;  // "AVX3" is AVX-512
};

// Best first; the last one is the compiler's baseline.
TELENS_EXPORT std::vector<SimdTarget> simd_targets();

// Selects the given target for all kernels of the process, on every thread, during its lifetime.
// Not nestable. No kernel may run during construction or destruction.
class TELENS_EXPORT ScopedSimdTarget {
 public:
  explicit ScopedSimdTarget(const SimdTarget& target);
  ~ScopedSimdTarget();
  ScopedSimdTarget(const ScopedSimdTarget&) = delete;
  ScopedSimdTarget& operator=(const ScopedSimdTarget&) = delete;
};

}  // namespace telens::kernels
