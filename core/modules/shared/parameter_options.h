// The parameters of a module: how they are created, stored and divided among ranks.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include <cmath>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "core/base/error.h"
#include "core/distributed/process_group.h"
#include "core/quantization/quantized_tensor.h"

namespace telens {

struct ParameterPlacement {
  // The dimension divided among the ranks of the tensor-parallel group; nullopt if none.
  std::optional<std::int64_t> partition_dim = {};
  // True if the gradient covers only this rank's part of the sequence; the owner sums the gradients
  // of the group. nullopt if it never does.
  std::optional<bool> sequence_parallel = {};
};

// A parameter that may be stored in low precision. `parameter` is autograd's leaf, with the
// high-precision dtype and the weight's shape. If `quantized` is set, it contains the values and
// `parameter` has almost no storage.
struct Weight {
  at::Tensor parameter;
  std::optional<QuantizedTensor> quantized;
  std::vector<at::Tensor> parts = {};  // leaves that `parameter` joins by rows; may be empty
  // The values of parts that are stored in low precision, each with separate scales.
  std::vector<QuantizedTensor> stored_parts = {};

  bool defined() const { return parameter.defined(); }
};

// The default device of modules: cuda if there is a GPU and this build has kernels for it, else
// cpu.
TELENS_EXPORT at::Device default_device(bool has_gpu);

struct ParameterOptions {
  // Fills a new tensor in place, such as torch's init functions.
  using InitMethod = std::function<void(at::Tensor)>;

  std::optional<at::ScalarType> params_dtype;  // default: torch's default dtype
  std::optional<at::Device> device;            // default: default_device()
  InitMethod init_method = {};                 // default: normal(0, 0.023), Transformer Engine's
  bool fuse_wgrad_accumulation = false;        // wgrad is added to main_grad (main_grad.h)
  // Passed to hook calls, which reduce statistics of weights over it.
  ProcessGroupPtr tp_group = {};
  std::int64_t tp_size = 1;  // the size of tp_group if set
  // How linear layers are divided among the ranks of tp_group (linear_parallel.h).
  std::string parallel_mode = {};
  bool sequence_parallel = false;
  bool delay_wgrad_compute = false;    // compute wgrad in Module::backward_dw
  std::string symmetric_ar_type = {};  // how row layers sum (SymmetricSum)

  // Describe these options in a struct of options. Modules without random weights describe only the
  // placement.
  template <typename Owner, typename Visitor>
  static void describe_placement_in(Visitor&& visit, ParameterOptions Owner::*member) {
    visit.nested("params_dtype", member, &ParameterOptions::params_dtype,
                 "dtype of the parameters; default: torch's default dtype");
    visit.nested("device", member, &ParameterOptions::device,
                 "device of the parameters; default: cuda if a GPU is present and this build "
                 "has kernels for it, else cpu");
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
                 "tensor-parallel group, also passed to the calls of debug features");
    visit.nested("tp_size", member, &ParameterOptions::tp_size,
                 "ranks in tp_group, which may also come later (set_tensor_parallel_group)");
  }
  template <typename Owner, typename Visitor>
  static void describe_sequence_parallel_in(Visitor&& visit, ParameterOptions Owner::*member) {
    describe_tensor_parallel_in<Owner>(visit, member);
    visit.nested("sequence_parallel", member, &ParameterOptions::sequence_parallel,
                 "with tp_size above 1: activations outside of column and row layers are "
                 "divided along the first dimension");
    visit.nested("delay_wgrad_compute", member, &ParameterOptions::delay_wgrad_compute,
                 "the backward defers weight gradients to backward_dw(), which computes them "
                 "for the oldest pending backward");
  }
  // For modules whose output may be a sum over ranks.
  template <typename Owner, typename Visitor>
  static void describe_symmetric_in(Visitor&& visit, ParameterOptions Owner::*member) {
    visit.nested("symmetric_ar_type", member, &ParameterOptions::symmetric_ar_type,
                 "how a row layer sums its output over the GPUs of tp_group, in symmetric memory: "
                 "multimem_all_reduce, two_shot or one_shot; None, and on CPUs: an all-reduce");
  }
  // For modules with one linear layer.
  template <typename Owner, typename Visitor>
  static void describe_linear_parallel_in(Visitor&& visit, ParameterOptions Owner::*member) {
    describe_sequence_parallel_in<Owner>(visit, member);
    visit.nested("parallel_mode", member, &ParameterOptions::parallel_mode,
                 "column: each rank has some of the output features; row: some of the input "
                 "features, and outputs are summed; None for an undivided layer");
  }

  // Sets tp_size to the size of tp_group if there is one: hook calls and scripts read it. Throws
  // UsageError for a size below 1.
  void resolve_tensor_parallel_size(const char* module);

  // Returns a copy with another init_method: output projections have a separate one.
  ParameterOptions with_init_method(InitMethod method) const {
    ParameterOptions options = *this;
    options.init_method = std::move(method);
    return options;
  }

  // Creates a weight and fills it with init_method.
  at::Tensor make_weight(at::IntArrayRef sizes) const;
  // Creates a tensor filled with a value: biases (0), norm weights (1).
  at::Tensor make_constant(at::IntArrayRef sizes, double value) const;
};

// ---- checks of other options

// Throws UsageError unless the value is finite and at least 0: a norm takes the square root of a
// sum that contains it.
inline void check_epsilon(const char* module, const char* option, double value) {
  if (!(std::isfinite(value) && value >= 0)) {
    raise<UsageError>("{}: {} is {}; expected a finite number, 0 or above", module, option, value);
  }
}

// Throws UsageError unless the value is in [0, 1].
inline void check_probability(const char* module, const char* option, double value) {
  if (!(value >= 0 && value <= 1)) {
    raise<UsageError>("{}: {} is {}; expected a probability, from 0 to 1", module, option, value);
  }
}

}  // namespace telens
