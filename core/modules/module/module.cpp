#include "core/modules/module/module.h"

#include <ATen/core/grad_mode.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <functional>
#include <string_view>
#include <utility>

#include "core/base/error.h"
#include "core/modules/layer/delayed_wgrads.h"
#include "core/modules/layer/linear_layer.h"
#include "core/quantization/extra_state.h"

namespace telens {

void Module::set_tensor(const std::string& name, at::Tensor tensor,
                        std::optional<QuantizedTensor> quantized) {
  if (const auto weight = weight_slots_.find(name); weight != weight_slots_.end()) {
    *weight->second = {tensor, std::move(quantized)};
  } else if (const auto slot = tensor_slots_.find(name); slot != tensor_slots_.end()) {
    *slot->second = tensor;
  } else {
    std::string known;
    for (const auto& [other, unused] : weight_slots_) {
      known += " " + other;
    }
    for (const auto& [other, unused] : tensor_slots_) {
      known += " " + other;
    }
    raise<UsageError>("{} does not have a tensor {}; it has:{}", this->name(), name, known);
  }
  if (at::Tensor* parameter = parameters_.find(name)) {
    *parameter = std::move(tensor);
  }
}

ParameterPlacement Module::placement(const std::string& name) const {
  const auto found = placements_.find(name);
  return found == placements_.end() ? ParameterPlacement() : found->second;
}

void Module::load_extra_state(const at::Tensor& bytes, const std::string& key) {
  if (bytes.numel() != 0) {
    raise<UsageError>("{}: {} keeps no extra state; got {} bytes", key, name(), bytes.numel());
  }
}

std::vector<LayerQuantization*> Module::quantizations() {
  std::vector<LayerQuantization*> own;
  for (LinearLayer* layer : layers()) own.push_back(&layer->quantization());
  return own;
}

void Module::set_tensor_parallel_group(const ProcessGroupPtr& group) {
  for (LinearLayer* layer : layers()) {
    layer->set_tensor_parallel_group(group);
  }
  for (const auto& child : children()) {
    if (auto* module = dynamic_cast<Module*>(child.get())) module->set_tensor_parallel_group(group);
  }
}

bool Module::backward_dw() { return make_delayed_wgrads(deliver_gradient); }

bool Module::make_delayed_wgrads(const std::function<void(const DelayedWgrad&)>& take) {
  const std::vector<LinearLayer*> own = layers();
  bool any = false;
  for (auto layer = own.rbegin(); layer != own.rend(); ++layer) {
    any |= (*layer)->run_delayed_wgrad(take);
  }
  return any;
}

bool Module::has_delayed_wgrads() {
  return !std::ranges::all_of(
      layers(), [](LinearLayer* layer) { return layer->delayed_wgrads().is_empty(); });
}

void Module::drop_delayed_wgrads(std::optional<std::size_t> backward) {
  for (LinearLayer* layer : layers()) {
    if (backward) {
      layer->delayed_wgrads().drop(*backward);
    } else {
      layer->delayed_wgrads().clear();
    }
  }
}

void Module::set_context_parallel(const ContextParallel& parallel) {
  for (const auto& child : children()) {
    if (auto* module = dynamic_cast<Module*>(child.get())) module->set_context_parallel(parallel);
  }
}

void Module::register_slot(std::string name, at::Tensor& slot, at::Tensor value) {
  slot = register_parameter(name, std::move(value));
  tensor_slots_.emplace(std::move(name), &slot);
}

void Module::register_weight(std::string name, Weight& slot, at::Tensor value) {
  slot.parameter = register_parameter(name, std::move(value));
  weight_slots_.emplace(std::move(name), &slot);
}

// ---- state_dict

namespace {

using VisitTensor = std::function<void(const std::string& name, const at::Tensor& tensor)>;
using VisitModule = std::function<void(const std::string& name, Module& module)>;

constexpr std::string_view kExtraState = "_extra_state";

// Tensors by name, and modules with extra state by the name of that state.
void visit_state(torch::nn::Module& module, const std::string& prefix,
                 const VisitTensor& visit_tensor, const VisitModule& visit_module) {
  for (const auto& item : module.named_parameters(/*recurse=*/false)) {
    visit_tensor(prefix + item.key(), item.value());
  }
  for (const auto& item : module.named_buffers(/*recurse=*/false)) {
    visit_tensor(prefix + item.key(), item.value());
  }
  if (auto* own = dynamic_cast<Module*>(&module); own != nullptr && own->extra_state().defined()) {
    visit_module(prefix + std::string(kExtraState), *own);
  }
  for (const auto& item : module.named_children()) {
    visit_state(*item.value(), prefix + item.key() + ".", visit_tensor, visit_module);
  }
}

void check_names(const StateDict& expected, const StateDict& state) {
  std::vector<std::string> missing, unexpected;
  for (const auto& [name, tensor] : expected) {
    if (!state.contains(name)) missing.push_back(name);
  }
  for (const auto& [name, tensor] : state) {
    if (!expected.contains(name)) unexpected.push_back(name);
  }
  if (!missing.empty() || !unexpected.empty()) {
    raise<UsageError>("load_state_dict: missing: {}; unexpected: {}", missing, unexpected);
  }
}

bool is_extra_state(std::string_view name) {
  return name == kExtraState || name.ends_with(std::string(".").append(kExtraState));
}

}  // namespace

StateDict state_dict(const torch::nn::Module& module) {
  StateDict state;
  visit_state(
      const_cast<torch::nn::Module&>(module), "",  // the visits below only read
      [&](const std::string& name, const at::Tensor& tensor) { state[name] = tensor.detach(); },
      [&](const std::string& name, Module& owner) { state[name] = owner.extra_state(); });
  return state;
}

void load_state_dict(torch::nn::Module& module, const StateDict& state) {
  const StateDict own = state_dict(module);
  check_names(own, state);
  for (const auto& [name, tensor] : own) {
    if (!is_extra_state(name) && tensor.sizes() != state.at(name).sizes()) {
      raise<ShapeError>("load_state_dict: {} is {}; expected {}", name, state.at(name).sizes(),
                        tensor.sizes());
    }
  }
  const at::NoGradGuard no_grad;
  visit_state(
      module, "",
      [&](const std::string& name, const at::Tensor& tensor) {
        at::Tensor(tensor).copy_(state.at(name));
      },
      [&](const std::string& name, Module& owner) { owner.set_extra_state(state.at(name), name); });
}

namespace {

// Returns the GEMM's name in messages: "fc1" for the suffix ".fc1".
std::string_view gemm_name(std::string_view suffix) {
  return suffix.substr(std::min(suffix.find_first_not_of('.'), suffix.size()));
}

}  // namespace

NamedLayers::NamedLayers(std::string kind, std::string name)
    : kind_(std::move(kind)), name_(std::move(name)) {}

LinearLayer NamedLayers::add(const std::string& suffix) {
  LinearLayer operation(name_.empty() ? std::string() : name_ + suffix, kind_ + suffix);
  operation.join(windows_);
  LinearLayer first = layers_.empty() ? operation : layers_.front().operation;
  operation.hooks().share_automatic_name(first.hooks(), suffix);
  layers_.push_back({operation, suffix});
  return operation;
}

void NamedLayers::set_name(const std::string& name) {
  name_ = name;
  for (Layer& layer : layers_) {
    layer.operation.hooks().set_name(name.empty() ? std::string() : name + layer.suffix);
  }
}

at::Tensor NamedLayers::extra_state() const {
  std::vector<at::Tensor> parts;
  for (const Layer& layer : layers_) {
    parts.push_back(layer.operation.quantization().extra_state());
  }
  return join_bytes(parts);
}

void NamedLayers::set_extra_state(const at::Tensor& bytes, const std::string& key) {
  std::vector<at::Tensor> parts = split_bytes(bytes, key);
  if (parts.empty()) parts.assign(layers_.size(), bytes);
  if (parts.size() != layers_.size()) {
    raise<UsageError>(
        "{}: {} holds the states of {} layer{}; expected {}, from {} to {}: the entry belongs to a "
        "different module",
        name(), key, parts.size(), parts.size() == 1 ? "" : "s", layers_.size(),
        layers_.front().suffix, layers_.back().suffix);
  }
  for (std::size_t i = 0; i < parts.size(); ++i) {
    layers_[i].operation.quantization().set_extra_state(
        parts[i], fmt::format("{}, GEMM {}", key, gemm_name(layers_[i].suffix)));
  }
}

}  // namespace telens
