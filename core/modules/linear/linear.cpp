#include "core/modules/linear/linear.h"

#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>
#include <set>
#include <string_view>
#include <utility>

namespace telens {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// Returns true if the tensors are adjacent in memory, in the layout of at::cat.
bool are_adjacent(at::TensorList parts) {
  const at::Tensor& first = parts.front();
  std::int64_t offset = first.storage_offset();
  return std::all_of(parts.begin(), parts.end(), [&](const at::Tensor& part) {
    const bool follows = part.has_storage() && part.storage().is_alias_of(first.storage()) &&
                         part.scalar_type() == first.scalar_type() && part.is_contiguous() &&
                         part.storage_offset() == offset;
    offset += part.numel();
    return follows;
  });
}

// Returns cat(parts, 0), without a copy if the parts are adjacent. `stored`: the values are stored
// elsewhere, and the result stores one element.
class JoinFunction : public torch::autograd::Function<JoinFunction> {
 public:
  static at::Tensor forward(AutogradContext* context, at::TensorList parts, bool stored) {
    context->set_materialize_grads(false);
    const at::Tensor& first = parts.front();
    std::vector<std::int64_t> rows;
    std::vector<std::int64_t> sizes = first.sizes().vec();
    sizes[0] = 0;
    for (const at::Tensor& part : parts) {
      rows.push_back(part.size(0));
      sizes[0] += part.size(0);
    }
    context->saved_data["rows"] = rows;
    if (stored) return at::zeros({1}, first.options()).expand(sizes);
    if (!are_adjacent(parts)) return at::cat(parts, 0);
    at::Tensor joined = at::empty({0}, first.options())
                            .set_(first.storage(), first.storage_offset(), sizes, first.strides());
    // A view created below autograd has a separate version counter. The backward must detect an
    // in-place change of the parts, which are views of the same tensor and share its counter.
    torch::autograd::impl::set_version_counter(joined,
                                               torch::autograd::impl::version_counter(first));
    return joined;
  }

  static variable_list backward(AutogradContext* context, variable_list grads) {
    const auto rows = context->saved_data["rows"].toIntVector();
    variable_list of_parts(rows.size());  // delayed, or none
    if (grads[0].defined()) of_parts = grads[0].split_with_sizes(rows, 0);
    of_parts.emplace_back();  // for `stored`
    return of_parts;
  }
};

void check_split(const char* module, const std::vector<ParameterPart>& split,
                 std::int64_t out_features) {
  std::int64_t rows = 0;
  for (const ParameterPart& part : split) {
    if (!part.out_features) {
      raise<UsageError>(
          "{}: the part '{}' of parameters_split does not have a number of rows, but others do; "
          "give a number for every part, or for none",
          module, part.name);
    }
    if (*part.out_features < 1) {
      raise<UsageError>(
          "{}: the part '{}' of parameters_split has {} rows; expected 1 or more, or only names "
          "for equal parts",
          module, part.name, *part.out_features);
    }
    rows += *part.out_features;
  }
  if (!split.empty() && rows != out_features) {
    raise<UsageError>("{}: the parts of parameters_split have {} rows; expected out_features, {}",
                      module, rows, out_features);
  }
}

// Older scripts name parts "query_" and append "weight"; checkpoints contain query_weight.
void strip_underscores(const char* module, std::vector<ParameterPart>& split) {
  std::set<std::string_view> names;
  for (ParameterPart& part : split) {
    part.name.erase(part.name.find_last_not_of('_') + 1);
    if (part.name.empty() || !names.insert(part.name).second) {
      raise<UsageError>(
          "{}: parameters_split has the part '{}' {}, ignoring trailing underscores; give each "
          "part a different name",
          module, part.name, part.name.empty() ? "without a name" : "twice");
    }
  }
}

}  // namespace

void resolve_split(const char* module, std::vector<ParameterPart>& split,
                   std::int64_t out_features) {
  strip_underscores(module, split);
  const auto shares = [](const ParameterPart& part) { return !part.out_features; };
  if (split.empty() || !std::ranges::all_of(split, shares)) {
    return check_split(module, split, out_features);
  }
  const auto parts = std::ssize(split);
  if (out_features % parts != 0) {
    raise<UsageError>(
        "{}: parameters_split names {} equal parts, which do not divide out_features, {}; give "
        "their sizes by name",
        module, parts, out_features);
  }
  for (ParameterPart& part : split) part.out_features = out_features / parts;
}

LinearParametersOptions own_parameters(const char* module, LinearParametersOptions whole,
                                       const LinearParallel& parallel) {
  LinearParametersOptions own = std::move(whole);
  own.in_features = parallel.own_in_features(module, own.in_features);
  own.out_features = parallel.own_out_features(module, own.out_features);
  if (parallel.mode == ParallelMode::column) {
    for (ParameterPart& part : own.split) {
      const std::string what = "the part '" + part.name + "' of parameters_split";
      part.out_features = divide(module, what.c_str(), *part.out_features, parallel.size);
    }
  }
  return own;
}

void LinearParameters::make(const LinearParametersOptions& options,
                            const ParameterOptions& parameters,
                            const RegisterWeight& register_weight,
                            const RegisterTensor& register_tensor) {
  const at::Tensor weight = parameters.make_weight({options.out_features, options.in_features});
  const at::Tensor bias =
      options.bias ? parameters.make_constant({options.out_features}, 0) : at::Tensor();
  const std::size_t parts = std::max<std::size_t>(1, options.split.size());
  weights_.resize(parts);
  biases_.resize(parts);
  if (options.split.empty()) {
    register_weight("weight", weights_[0], weight);
    if (options.bias) register_tensor("bias", biases_[0], bias);
    return;
  }
  std::int64_t row = 0;
  for (std::size_t i = 0; i < parts; ++i) {
    const std::string& name = options.split[i].name;
    const std::int64_t rows = *options.split[i].out_features;
    register_weight(name + "_weight", weights_[i], weight.narrow(0, row, rows).detach());
    if (options.bias)
      register_tensor(name + "_bias", biases_[i], bias.narrow(0, row, rows).detach());
    row += rows;
  }
}

Weight LinearParameters::weight() const {
  if (weights_.size() == 1) return weights_[0];
  std::vector<at::Tensor> parts;
  std::vector<QuantizedTensor> stored;
  for (const Weight& weight : weights_) {
    parts.push_back(weight.parameter);
    if (weight.quantized) stored.push_back(*weight.quantized);
  }
  if (!stored.empty() && stored.size() != parts.size()) {
    raise<UsageError>(
        "{} of the {} parts of a weight are stored in low precision; store all of them so, or none",
        stored.size(), parts.size());
  }
  at::Tensor joined = JoinFunction::apply(at::TensorList(parts), !stored.empty());
  return {.parameter = std::move(joined),
          .quantized = std::nullopt,
          .parts = std::move(parts),
          .stored_parts = std::move(stored)};
}

at::Tensor LinearParameters::bias() const {
  if (biases_.size() == 1) return biases_[0];
  if (!biases_[0].defined()) return {};
  return JoinFunction::apply(at::TensorList(biases_), false);
}

Linear::Linear(LinearOptions options) : options_(std::move(options)), operation_(options_.name) {
  if (options_.in_features < 1 || options_.out_features < 1) {
    raise<UsageError>("Linear: in_features is {} and out_features {}; expected at least 1",
                      options_.in_features, options_.out_features);
  }
  resolve_split("Linear", options_.parameters_split, options_.out_features);
  LinearParallel parallel = linear_parallel("Linear", options_.parameters);
  parallel.request_overlap("Linear", options_.overlap, options_.parameters);
  operation_.set_parallel(parallel);
  parameters_.make(
      own_parameters("Linear",
                     {.in_features = options_.in_features,
                      .out_features = options_.out_features,
                      .bias = options_.bias,
                      .split = options_.parameters_split},
                     parallel),
      options_.parameters,
      [&](std::string name, Weight& slot, at::Tensor value) {
        place(name, parallel.weight_placement());
        register_weight(std::move(name), slot, std::move(value));
      },
      [&](std::string name, at::Tensor& slot, at::Tensor value) {
        place(name, parallel.bias_placement());
        register_slot(std::move(name), slot, std::move(value));
      });
}

Outputs Linear::forward(const LinearInputs& inputs) {
  const LinearCall call{.is_first_microbatch = inputs.is_first_microbatch,
                        .fp8_output = inputs.fp8_output,
                        .fp8_grad = inputs.fp8_grad,
                        .accumulates_wgrad = options_.parameters.fuse_wgrad_accumulation,
                        .delays_wgrad = options_.parameters.delay_wgrad_compute,
                        .training = is_training()};
  if (options_.return_bias) {
    return {operation_(inputs.inp, parameters_.weight(), {}, call), parameters_.bias()};
  }
  return {operation_(inputs.inp, parameters_.weight(), parameters_.bias(), call)};
}

at::Tensor Linear::extra_state() const { return operation_.quantization().extra_state(); }

void Linear::load_extra_state(const at::Tensor& bytes, const std::string& key) {
  operation_.quantization().set_extra_state(bytes, key);
}

void Linear::set_debug_name(const std::string& name) { operation_.hooks().set_name(name); }

}  // namespace telens
