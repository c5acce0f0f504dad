// How a module makes its parameters, dtype, device and initial values, where gradients go, and the
// group of ranks that it is told to be one of.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include <functional>
#include <optional>
#include <string>
#include <utility>

#include "core/base/error.h"
#include "core/distributed/process_group.h"

namespace telens {

// Where modules are made that name no device: cuda if there is a GPU and the operators have kernels
// for it, else cpu.
TELENS_EXPORT at::Device default_device(bool has_gpu);

struct ParameterOptions {
  // Fills a fresh tensor in place, such as torch's init functions.
  using InitMethod = std::function<void(at::Tensor)>;

  std::optional<at::ScalarType> params_dtype;  // default: torch's default dtype
  std::optional<at::Device> device;            // default: default_device()
  InitMethod init_method = {};                 // default: normal(0, 0.023), Transformer Engine's
  bool fuse_wgrad_accumulation = false;        // wgrad is added to main_grad (main_grad.h)
  // Handed to calls, by which weights' statistics are reduced.
  ProcessGroupPtr tp_group = {};
  std::int64_t tp_size = 1;  // that of tp_group, where there is one
  // How linear layers are divided among its ranks (linear_parallel.h).
  std::string parallel_mode = {};
  bool sequence_parallel = false;
  bool delay_wgrad_compute = false;    // wgrad waits for Module::backward_dw
  std::string symmetric_ar_type = {};  // how row layers are summed (symmetric_memory.h)

  // Where a struct of options describes itself. Modules without random weights describe the
  // placement alone.
  template <typename Owner, typename Visitor>
  static void describe_placement_in(Visitor&& visit, ParameterOptions Owner::*member) {
    visit.nested("params_dtype", member, &ParameterOptions::params_dtype,
                 "dtype of the parameters; default: torch's default dtype");
    visit.nested("device", member, &ParameterOptions::device,
                 "where the parameters are made; default: cuda if there is one and this build has "
                 "kernels for it, else cpu");
  }
  template <typename Owner, typename Visitor>
  static void describe_in(Visitor&& visit, ParameterOptions Owner::*member) {
    describe_placement_in<Owner>(visit, member);
    describe_init_method_in<Owner>(visit, member);
    describe_accumulation_in<Owner>(visit, member);
  }
  template <typename Owner, typename Visitor>
  static void describe_init_method_in(Visitor&& visit, ParameterOptions Owner::*member) {
    visit.nested("init_method", member, &ParameterOptions::init_method,
                 "fills a weight in place; default: normal with mean 0 and deviation 0.023");
  }
  template <typename Owner, typename Visitor>
  static void describe_accumulation_in(Visitor&& visit, ParameterOptions Owner::*member) {
    visit.nested("fuse_wgrad_accumulation", member, &ParameterOptions::fuse_wgrad_accumulation,
                 "the gradients of weights are added to their main_grad, a tensor that you make; "
                 ".grad stays None. FP32: inside the GEMM; BF16, FP16: a product in FP32 is "
                 "added and rounded once");
  }

  template <typename Owner, typename Visitor>
  static void describe_tensor_parallel_in(Visitor&& visit, ParameterOptions Owner::*member) {
    visit.nested("tp_group", member, &ParameterOptions::tp_group,
                 "tensor-parallel group, handed to the calls of debug features too");
    visit.nested("tp_size", member, &ParameterOptions::tp_size,
                 "ranks in tp_group, which may also come later (set_tensor_parallel_group)");
  }
  template <typename Owner, typename Visitor>
  static void describe_sequence_parallel_in(Visitor&& visit, ParameterOptions Owner::*member) {
    describe_tensor_parallel_in<Owner>(visit, member);
    visit.nested("sequence_parallel", member, &ParameterOptions::sequence_parallel,
                 "with tp_size above 1: outside of column and row layers each rank has its part of "
                 "the first dimension");
    visit.nested("delay_wgrad_compute", member, &ParameterOptions::delay_wgrad_compute,
                 "the backward leaves the gradients of weights to backward_dw(), which makes those "
                 "of the oldest backward");
  }
  // For a module whose output may be a sum over ranks.
  template <typename Owner, typename Visitor>
  static void describe_symmetric_in(Visitor&& visit, ParameterOptions Owner::*member) {
    visit.nested("symmetric_ar_type", member, &ParameterOptions::symmetric_ar_type,
                 "how a row layer sums its output over the GPUs of tp_group, in symmetric memory: "
                 "multimem_all_reduce, two_shot or one_shot; None, and on CPUs: an all-reduce");
  }
  // For a module that is one linear layer.
  template <typename Owner, typename Visitor>
  static void describe_linear_parallel_in(Visitor&& visit, ParameterOptions Owner::*member) {
    describe_sequence_parallel_in<Owner>(visit, member);
    visit.nested("parallel_mode", member, &ParameterOptions::parallel_mode,
                 "column: each rank has some of the output features; row: some of the input "
                 "features, and outputs are summed; None: nothing is divided");
  }

  // tp_size becomes that of tp_group, where there is one: what layers hand to their calls, and what
  // a script reads of the module. Throws UsageError for a size below 1.
  void settle_tensor_parallel_size(const char* module);

  // The same with another init_method: output projections have one of their own.
  ParameterOptions with_init_method(InitMethod method) const {
    ParameterOptions options = *this;
    options.init_method = std::move(method);
    return options;
  }

  // A weight, filled by init_method.
  at::Tensor make_weight(at::IntArrayRef sizes) const;
  // A tensor of one value: biases (0), norm weights (1).
  at::Tensor make_constant(at::IntArrayRef sizes, double value) const;
};

}  // namespace telens
