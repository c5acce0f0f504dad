// How work is cut for threads.
#pragma once

#include <cstdint>

namespace telens::kernels {

// Elements that are read and written once for which starting another thread pays.
inline constexpr std::int64_t kGrain = 16384;

}  // namespace telens::kernels
