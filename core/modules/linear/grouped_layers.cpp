#include "core/modules/linear/grouped_layers.h"

#include <ATen/ops/cat.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/csrc/autograd/variable.h>

#include <utility>

#include "core/modules/linear/landed_rows.h"
#include "core/modules/shared/autograd_utils.h"

namespace telens {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

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

}  // namespace

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

}  // namespace telens
