#include "core/modules/module/state_dict.h"

#include <ATen/core/grad_mode.h>
#include <fmt/ranges.h>

#include <functional>
#include <string_view>

#include "core/modules/module/module.h"

namespace telens {
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

}  // namespace telens
