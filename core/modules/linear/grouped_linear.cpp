#include "core/modules/linear/grouped_linear.h"

#include <ATen/ops/cat.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <numeric>
#include <utility>

#include "core/modules/shared/activation_dtype.h"

namespace telens {

GroupedLinear::GroupedLinear(GroupedLinearOptions options)
    : options_(std::move(options)), layers_("GroupedLinear", options_.name) {
  const GroupedLinearOptions& own = options_;
  if (own.num_gemms < 1 || own.in_features < 1 || own.out_features < 1) {
    raise<UsageError>(
        "GroupedLinear: num_gemms is {}, in_features {} and out_features {}; expected at least 1",
        own.num_gemms, own.in_features, own.out_features);
  }
  const std::int64_t first_gemm = own.first_gemm.value_or(0);
  if (first_gemm < 0) {
    raise<UsageError>("GroupedLinear: first_gemm is {}; expected a number from 0 on", first_gemm);
  }
  // The mode gives the weights their shapes; what is sent is the caller's affair.
  const LinearParallel parallel = linear_parallel("GroupedLinear", options_.parameters);
  if (parallel.is_divided() && own.bias) {
    raise<UsageError>(
        "GroupedLinear: a bias with parallel_mode '{}' and tp_size {} would be added by each rank; "
        "use bias=False",
        own.parameters.parallel_mode, parallel.size);
  }
  const LinearParametersOptions sizes = own_parameters(
      "GroupedLinear",
      {.in_features = own.in_features, .out_features = own.out_features, .bias = own.bias},
      parallel);
  in_features_ = sizes.in_features;
  out_features_ = sizes.out_features;
  maps_.reserve(static_cast<std::size_t>(own.num_gemms));  // registered slots stay where they are
  for (std::int64_t i = 0; i < own.num_gemms; ++i) {
    const std::string number = std::to_string(i);
    Map& map = maps_.emplace_back(Map{{}, layers_.add(fmt::format(".gemm_{}", first_gemm + i))});
    map.operation.set_parallel({.size = parallel.size, .group = parallel.group});
    map.operation.quantization().set_module_type("grouped_linear");
    map.parameters.make(
        sizes, own.parameters,
        [&](const std::string& parameter, Weight& slot, at::Tensor value) {
          place(parameter + number, parallel.weight_placement());
          register_weight(parameter + number, slot, std::move(value));
        },
        [&](const std::string& parameter, at::Tensor& slot, at::Tensor value) {
          register_slot(parameter + number, slot, std::move(value));
        });
  }
}

void GroupedLinear::check(const GroupedLinearInputs& inputs) const {
  const std::vector<std::int64_t>& splits = inputs.m_splits;
  const std::string& name = layers_.name();
  if (std::ssize(splits) != options_.num_gemms) {
    raise<ShapeError>("{}: m_splits has {} numbers; expected one for each of {} GEMMs", name,
                      splits.size(), options_.num_gemms);
  }
  if (const auto negative =
          std::find_if(splits.begin(), splits.end(), [](auto n) { return n < 0; });
      negative != splits.end()) {
    raise<ShapeError>("{}: m_splits[{}] is {}; expected a number of rows, 0 or more", name,
                      negative - splits.begin(), *negative);
  }
  const at::Tensor& inp = inputs.inp;
  if (inp.dim() < 1 || inp.size(-1) != in_features_) {
    raise<ShapeError>("{}: inp has shape {}; expected [sum(m_splits), {}]", name,
                      c10::str(inp.sizes()), in_features_);
  }
  const std::int64_t rows = inp.numel() / in_features_;
  const std::int64_t sum = std::accumulate(splits.begin(), splits.end(), std::int64_t{0});
  if (sum != rows) {
    raise<ShapeError>("{}: m_splits [{}] are {} rows in all; inp of shape {} has {}", name,
                      fmt::join(splits, ", "), sum, c10::str(inp.sizes()), rows);
  }
}

Outputs GroupedLinear::forward(const GroupedLinearInputs& inputs) {
  check(inputs);
  const LinearCall call{.is_first_microbatch = inputs.is_first_microbatch,
                        .accumulates_wgrad = options_.parameters.fuse_wgrad_accumulation,
                        .delays_wgrad = options_.parameters.delay_wgrad_compute,
                        .training = is_training()};
  const at::Tensor input = to_activation_dtype(inputs.inp);
  const std::vector<at::Tensor> parts =
      input.reshape({-1, in_features_}).split_with_sizes(inputs.m_splits);
  std::vector<at::Tensor> results;
  Outputs outputs(1);
  for (std::size_t i = 0; i < maps_.size(); ++i) {
    const at::Tensor bias = maps_[i].parameters.bias();
    const at::Tensor applied = options_.return_bias ? at::Tensor() : bias;
    results.push_back(maps_[i].operation(parts[i], maps_[i].parameters.weight(), applied, call));
    if (options_.return_bias) outputs.push_back(bias);
  }
  std::vector<std::int64_t> sizes = input.sizes().vec();
  sizes.back() = out_features_;
  const at::Tensor joined = at::cat(results);
  outputs[0] = input.dim() == 2 ? joined : joined.view(sizes);
  return outputs;
}

at::Tensor GroupedLinear::extra_state() const { return layers_.extra_state(); }

void GroupedLinear::set_extra_state(const at::Tensor& bytes) { layers_.set_extra_state(bytes); }

std::vector<LinearLayer*> GroupedLinear::layers() {
  std::vector<LinearLayer*> layers;
  for (Map& map : maps_) layers.push_back(&map.operation);
  return layers;
}

void GroupedLinear::set_debug_name(const std::string& name) {
  options_.name = name;
  layers_.set_name(name);
}

}  // namespace telens
