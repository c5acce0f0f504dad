// LibTorch headers that most sources of libtelens.so use; parsing them takes seconds per file.
#pragma once

#include <ATen/ATen.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/library.h>
#include <torch/nn/module.h>

#include <fmt/format.h>
