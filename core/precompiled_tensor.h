// LibTorch headers of sources that use tensors and operators and no more of it: half the size of
// core/precompiled.h. An empty file takes one second with these and four with those.
#pragma once

#include <ATen/Context.h>
#include <ATen/Parallel.h>
#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>

#include "cmake/standard_headers.h"
