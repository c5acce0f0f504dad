#include "core/modules/linear/grouped_linear.h"

#include <ATen/ops/cat.h>
#include <ATen/ops/stack.h>
#include <fmt/ranges.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>
#include <numeric>
#include <utility>

#include "core/modules/layer/gemm_operands.h"
#include "core/modules/layer/linear_layer.h"
#include "core/modules/linear/grouped_product.h"
#include "core/modules/shared/activation_dtype.h"
#include "core/modules/shared/autograd_utils.h"
#include "core/modules/shared/recomputation.h"
#include "core/quantization/quantized_tensor.h"

namespace telens {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// ---- The layers under a recipe if no feature is due: one autograd function for all maps, with the
// same bits as separate maps.

struct GroupedLayers {
  at::Tensor input;                // [sum(rows), in], in the computation's dtype
  std::vector<std::int64_t> rows;  // input rows per map
  at::Tensor out;                  // output buffer; may be undefined
  at::Tensor dgrad_out;            // buffer of the input's gradient; may be undefined
  std::string layer;               // for messages
};

// One map: its layer and its arguments.
struct GroupedMap {
  LinearLayer& operation;
  ForwardContext context;
  Weight weight;
  at::Tensor bias;  // undefined for all maps or for none
};

// A map's part of the backward: the number of its saved tensors, and its state.
struct MapBackward {
  std::size_t saved = 0;
  c10::intrusive_ptr<LinearBackward> backward;  // nullptr if it needs no gradient
};

struct GroupedLayersBackward final : torch::CustomClassHolder {
  std::vector<MapBackward> maps;
  std::vector<std::int64_t> rows;
  bool has_biases = false;
  at::Tensor dgrad_out;
  std::string layer;
};

// Splits into consecutive rows that share the whole tensor's version counter, also below autograd.
std::vector<at::Tensor> split_parts(const at::Tensor& whole,
                                    const std::vector<std::int64_t>& rows) {
  std::vector<at::Tensor> parts = whole.split_with_sizes(rows);
  for (at::Tensor& part : parts) {
    if (whole.is_inference()) break;
    torch::autograd::impl::set_version_counter(part, torch::autograd::impl::version_counter(whole));
  }
  return parts;
}

at::Tensor joined(const std::vector<at::Tensor>& parts, const at::Tensor& buffer) {
  if (!buffer.defined()) return at::cat(parts);
  at::Tensor place = output_view(buffer);
  return at::cat_out(place, parts);
}

// Results are in the order of the forward's tensors: input, weights, biases. Maps run in the order
// in which autograd would run separate functions: last first.
variable_list compute_all_gradients(const GroupedLayersBackward& grouped,
                                    const variable_list& saved, const at::Tensor& grad_output) {
  const std::vector<at::Tensor> grads = grad_output.split_with_sizes(grouped.rows);
  const std::size_t maps = grouped.maps.size();
  variable_list of_weights(maps), of_biases(maps), of_rows(maps);
  std::size_t end = saved.size();
  for (std::size_t i = maps; i-- > 0;) {
    const auto& [count, backward] = grouped.maps[i];
    end -= count;
    if (!backward) continue;
    const auto first = saved.begin() + static_cast<std::ptrdiff_t>(end);
    const variable_list own(first, first + static_cast<std::ptrdiff_t>(count));
    LinearGradients gradients = naming_layer(backward->layer->name(), [&] {
      return telens::compute_gradients(*backward, own, grads[i]);
    });
    of_rows[i] = std::move(gradients.input);
    of_weights[i] = std::move(gradients.weight);
    of_biases[i] = std::move(gradients.bias);
    if (backward->context.first_in_region) backward->context.region->update(/*backward=*/true);
  }
  const bool has_dgrad = of_rows[0].defined();  // the same for all maps
  variable_list gradients{has_dgrad ? joined(of_rows, grouped.dgrad_out) : at::Tensor()};
  gradients.insert(gradients.end(), of_weights.begin(), of_weights.end());
  if (grouped.has_biases) gradients.insert(gradients.end(), of_biases.begin(), of_biases.end());
  return gradients;
}

// The gradients that a map must compute.
GradientNeeds get_needs(const at::Tensor& input, const GroupedMap& map) {
  return {wants_gradient(input), wants_gradient(map.weight.parameter), wants_gradient(map.bias)};
}

struct GroupedArguments {
  const GroupedLayers& grouped;
  std::vector<GroupedMap>& maps;
  std::vector<GradientNeeds> needs;
  const LinearCall& call;
};

class GroupedLayersFunction : public torch::autograd::Function<GroupedLayersFunction> {
 public:
  static at::Tensor forward(AutogradContext* autograd, const at::Tensor& input, at::TensorList,
                            at::TensorList biases, GroupedArguments* arguments) {
    const at::AutoDispatchBelowADInplaceOrView below_autograd;
    const GroupedLayers& grouped = arguments->grouped;
    const std::vector<at::Tensor> parts = split_parts(input, grouped.rows);
    auto backward = c10::make_intrusive<GroupedLayersBackward>();
    std::vector<at::Tensor> outputs;
    variable_list saved;
    for (std::size_t i = 0; i < arguments->maps.size(); ++i) {
      LinearForward made = run_map(*arguments, i, parts[i]);
      outputs.push_back(std::move(made.output));
      backward->maps.push_back({made.saved.size(), std::move(made.backward)});
      saved.insert(saved.end(), made.saved.begin(), made.saved.end());
    }
    backward->rows = grouped.rows;
    backward->has_biases = !biases.empty();
    backward->dgrad_out = grouped.dgrad_out;
    backward->layer = grouped.layer;
    autograd->save_for_backward(std::move(saved));
    autograd->saved_data["grouped"] = c10::IValue::make_capsule(std::move(backward));
    return joined(outputs, grouped.out);
  }

  static variable_list backward(AutogradContext* autograd, const variable_list& grad_outputs) {
    return translating_errors([&] {
      const auto holder = autograd->saved_data["grouped"].toCapsule();
      const auto& backward = static_cast<const GroupedLayersBackward&>(*holder);
      check_no_second_derivative(backward.layer);
      const c10::impl::ExcludeDispatchKeyGuard no_torch_autocast(c10::autocast_dispatch_keyset);
      const variable_list saved = autograd->get_saved_variables();
      const at::AutoDispatchBelowADInplaceOrView below_autograd;
      variable_list gradients = compute_all_gradients(backward, saved, grad_outputs[0]);
      gradients.emplace_back();  // for the forward's last argument
      return gradients;
    });
  }

 private:
  static LinearForward run_map(GroupedArguments& arguments, std::size_t i, const at::Tensor& part) {
    GroupedMap& map = arguments.maps[i];
    const GradientNeeds needs = arguments.needs[i];
    return naming_layer(map.operation.name(), [&] {
      return run_linear(map.operation.prepare(std::move(map.context), part, map.weight, map.bias,
                                              arguments.call, needs.any()),
                        needs);
    });
  }
};

// Returns [sum(rows), out].
at::Tensor run_grouped(const GroupedLayers& grouped, std::vector<GroupedMap> maps,
                       const LinearCall& call) {
  const c10::impl::ExcludeDispatchKeyGuard no_torch_autocast(c10::autocast_dispatch_keyset);
  std::vector<at::Tensor> weights;
  std::vector<at::Tensor> biases;
  GroupedArguments arguments{grouped, maps, {}, call};
  for (const GroupedMap& map : maps) {
    weights.push_back(map.weight.parameter);
    if (map.bias.defined()) biases.push_back(map.bias);
    arguments.needs.push_back(get_needs(grouped.input, map));
  }
  return GroupedLayersFunction::apply(grouped.input, at::TensorList(weights),
                                      at::TensorList(biases), &arguments);
}

// ---- checks and buffers

void check_buffer(const std::string& module, const char* name,
                  const std::optional<at::Tensor>& buffer, at::IntArrayRef sizes,
                  const at::Tensor& like) {
  if (!buffer) return;
  const bool fits = buffer->sizes() == sizes && buffer->scalar_type() == like.scalar_type() &&
                    buffer->device() == like.device() && buffer->is_contiguous();
  if (!fits) {
    raise<ShapeError>("{}: {} is {} of {} on {}; expected contiguous {} of {} on {}", module, name,
                      c10::str(buffer->sizes()), c10::toString(buffer->scalar_type()),
                      buffer->device().str(), c10::str(sizes), c10::toString(like.scalar_type()),
                      like.device().str());
  }
  if (buffer->requires_grad()) {
    raise<UsageError>(
        "{}: {} requires a gradient, as a buffer does not; pass a detached tensor of the memory",
        module, name);
  }
}

// Checkpoints record each map's run separately, and delayed gradients belong to each layer.
bool runs_once(const LinearCall& call) { return !call.delays_wgrad && !recomputation::is_active(); }

// True if no recipe, feature, cache or checkpoint applies to any GEMM.
bool is_plain(const LinearCall& call) {
  return runs_once(call) && !call.is_first_microbatch && !call.accumulates_wgrad;
}

}  // namespace

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
  // The mode determines the weights' shapes; the caller communicates.
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
  if (own.single_grouped_weight && own.parameters.fuse_wgrad_accumulation) {
    raise<UsageError>(
        "GroupedLinear: fuse_wgrad_accumulation adds to each weight's main_grad, but "
        "single_grouped_weight joins all weights in one parameter; use only one of them");
  }
  maps_.reserve(static_cast<std::size_t>(own.num_gemms));  // registered slots must not move
  for (std::int64_t i = 0; i < own.num_gemms; ++i) {
    Map& map = maps_.emplace_back(Map{{}, layers_.add(fmt::format(".gemm_{}", first_gemm + i))});
    map.operation.set_parallel({.size = parallel.size, .group = parallel.group});
    map.operation.quantization().set_module_type("grouped_linear");
  }
  make_parameters(sizes, parallel);
}

// Draws the weights in the same order for one joined parameter or many.
void GroupedLinear::make_parameters(const LinearParametersOptions& sizes,
                                    const LinearParallel& parallel) {
  std::vector<at::Tensor> weights;
  std::vector<at::Tensor> biases;
  for (std::size_t i = 0; i < maps_.size(); ++i) {
    const std::string number = std::to_string(i);
    maps_[i].parameters.make(
        sizes, options_.parameters,
        [&](const std::string& parameter, Weight& slot, at::Tensor value) {
          if (options_.single_grouped_weight) return weights.push_back(std::move(value));
          place(parameter + number, parallel.weight_placement());
          register_weight(parameter + number, slot, std::move(value));
        },
        [&](const std::string& parameter, at::Tensor& slot, at::Tensor value) {
          if (options_.single_grouped_bias) return biases.push_back(std::move(value));
          register_slot(parameter + number, slot, std::move(value));
        });
  }
  if (!weights.empty()) {
    ParameterPlacement placement = parallel.weight_placement();
    if (placement.partition_dim) ++*placement.partition_dim;
    place("weight", placement);
    register_weight("weight", grouped_weight_, at::stack(weights).detach());
  }
  if (!biases.empty()) register_slot("bias", grouped_bias_, at::stack(biases).detach());
}

std::vector<Weight> GroupedLinear::weights() const {
  std::vector<Weight> own;
  if (!options_.single_grouped_weight) {
    for (const Map& map : maps_) own.push_back(map.parameters.weight());
    return own;
  }
  for (const at::Tensor& part : grouped_weight_.parameter.unbind(0)) own.push_back({part, {}});
  if (!grouped_weight_.quantized) return own;
  for (std::size_t i = 0; i < own.size(); ++i) {
    own[i].quantized = quantized_rows(*grouped_weight_.quantized,
                                      static_cast<std::int64_t>(i) * out_features_, out_features_);
  }
  return own;
}

// Undefined tensors without biases.
std::vector<at::Tensor> GroupedLinear::biases() const {
  if (grouped_bias_.defined()) return grouped_bias_.unbind(0);
  std::vector<at::Tensor> own;
  for (const Map& map : maps_) {
    own.push_back(options_.bias ? map.parameters.bias() : at::Tensor());
  }
  return own;
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

std::vector<GroupedLinear::MapCall> GroupedLinear::begin(const at::Tensor& input,
                                                         const GroupedLinearInputs& inputs,
                                                         const LinearCall& call) {
  std::vector<Weight> own_weights = weights();
  const std::vector<at::Tensor> own_biases = biases();
  std::vector<MapCall> calls;
  for (std::size_t i = 0; i < maps_.size(); ++i) {
    const std::int64_t sizes[] = {inputs.m_splits[i], in_features_};
    MapCall& each = calls.emplace_back();
    each.weight = std::move(own_weights[i]);
    if (!options_.return_bias) each.bias = own_biases[i];
    each.context = maps_[i].operation.begin(sizes, input, each.weight, call);
  }
  return calls;
}

at::Tensor GroupedLinear::run_one_by_one(const at::Tensor& input, const GroupedLinearInputs& inputs,
                                         std::vector<MapCall> calls, const LinearCall& call) {
  const at::Tensor from = inputs.dgrad_out ? with_landed_gradient(input, *inputs.dgrad_out) : input;
  const std::vector<at::Tensor> parts = from.split_with_sizes(inputs.m_splits);
  std::vector<at::Tensor> results;
  for (std::size_t i = 0; i < maps_.size(); ++i) {
    results.push_back(maps_[i].operation.run(std::move(calls[i].context), parts[i], calls[i].weight,
                                             calls[i].bias, call));
  }
  return inputs.out ? join_into(results, *inputs.out) : at::cat(results);
}

at::Tensor GroupedLinear::run_as_one(const at::Tensor& input, const GroupedLinearInputs& inputs,
                                     std::vector<MapCall> calls) const {
  GroupedProduct product{.input = input,
                         .weights = {},
                         .biases = {},
                         .rows = inputs.m_splits,
                         .out = inputs.out.value_or(at::Tensor()),
                         .dgrad_out = inputs.dgrad_out.value_or(at::Tensor()),
                         .layer = layers_.name()};
  for (MapCall& each : calls) {
    product.weights.push_back(std::move(each.weight.parameter));
    if (each.bias.defined()) product.biases.push_back(std::move(each.bias));
  }
  return multiply_grouped(product);
}

at::Tensor GroupedLinear::run_layers_as_one(const at::Tensor& input,
                                            const GroupedLinearInputs& inputs,
                                            std::vector<MapCall> calls, const LinearCall& call) {
  std::vector<GroupedMap> maps;
  for (std::size_t i = 0; i < maps_.size(); ++i) {
    maps.push_back({maps_[i].operation, std::move(calls[i].context), std::move(calls[i].weight),
                    std::move(calls[i].bias)});
  }
  return run_grouped({.input = input,
                      .rows = inputs.m_splits,
                      .out = inputs.out.value_or(at::Tensor()),
                      .dgrad_out = inputs.dgrad_out.value_or(at::Tensor()),
                      .layer = layers_.name()},
                     std::move(maps), call);
}

at::Tensor GroupedLinear::run(const at::Tensor& input, const GroupedLinearInputs& inputs,
                              std::vector<MapCall> calls, const LinearCall& call) {
  if (is_plain(call) && std::ranges::all_of(calls, &MapCall::is_plain)) {
    return run_as_one(input, inputs, std::move(calls));
  }
  if (runs_once(call) && std::ranges::all_of(calls, &MapCall::only_casts)) {
    return run_layers_as_one(input, inputs, std::move(calls), call);
  }
  return run_one_by_one(input, inputs, std::move(calls), call);
}

Outputs GroupedLinear::forward(const GroupedLinearInputs& inputs) {
  check(inputs);
  const LinearCall call{.is_first_microbatch = inputs.is_first_microbatch,
                        .accumulates_wgrad = options_.parameters.fuse_wgrad_accumulation,
                        .delays_wgrad = options_.parameters.delay_wgrad_compute,
                        .training = is_training()};
  const at::Tensor given = dequantize_handle(to_activation_dtype(inputs.inp));
  const at::Tensor input = given.dim() == 2 ? given : given.reshape({-1, in_features_});
  const std::int64_t rows = input.size(0);
  check_buffer(layers_.name(), "out", inputs.out, {rows, out_features_}, input);
  check_buffer(layers_.name(), "dgrad_out", inputs.dgrad_out, {rows, in_features_}, input);
  std::vector<MapCall> calls = begin(input, inputs, call);

  Outputs outputs{run(input, inputs, std::move(calls), call)};
  if (given.dim() != 2) {
    std::vector<std::int64_t> sizes = given.sizes().vec();
    sizes.back() = out_features_;
    outputs[0] = outputs[0].view(sizes);
  }
  if (options_.return_bias) {
    const std::vector<at::Tensor> own = biases();
    outputs.insert(outputs.end(), own.begin(), own.end());
  }
  return outputs;
}

at::Tensor GroupedLinear::extra_state() const { return layers_.extra_state(); }

void GroupedLinear::load_extra_state(const at::Tensor& bytes, const std::string& key) {
  layers_.set_extra_state(bytes, key);
}

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
