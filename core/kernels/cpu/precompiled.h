// LibTorch headers that the operators' kernels for the CPU use.
#pragma once

#include <ATen/Parallel.h>
#include <ATen/core/Tensor.h>
#include <torch/library.h>
