// TELENS_HOST_DEVICE marks functions that CUDA kernels call too. Empty without nvcc.
#pragma once

#if defined(__CUDACC__)
#define TELENS_HOST_DEVICE __host__ __device__
#else
#define TELENS_HOST_DEVICE
#endif
