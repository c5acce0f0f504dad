#include "hooks/untouched.h"

#include <ATen/Context.h>

#include <algorithm>
#include <cstring>
#include <mutex>

namespace telens {
namespace {

at::Tensor get_state(at::Generator& generator) {
  const std::lock_guard lock(generator.mutex());
  return generator.get_state();
}

// States are stored as bytes on the host.
bool are_equal(const at::Tensor& a, const at::Tensor& b) {
  return a.nbytes() == b.nbytes() &&
         std::memcmp(a.const_data_ptr(), b.const_data_ptr(), a.nbytes()) == 0;
}

c10::impl::LocalDispatchKeySet with_counting() {
  c10::impl::LocalDispatchKeySet keys = c10::impl::tls_local_dispatch_key_set();
  keys.excluded_ = keys.excluded_ - c10::DispatchKeySet(c10::DispatchKey::ADInplaceOrView);
  return keys;
}

}  // namespace

RandomState::RandomState(std::optional<at::Device> device) {
  const auto add = [this](at::Device of) {
    at::Generator generator = at::globalContext().defaultGenerator(of);
    at::Tensor state = get_state(generator);
    states_.emplace_back(std::move(generator), std::move(state));
  };
  add(at::Device(at::kCPU));
  if (device && !device->is_cpu()) add(*device);
}

bool RandomState::restore() {
  bool changed = false;
  for (auto& [generator, state] : states_) {
    if (are_equal(get_state(generator), state)) continue;
    changed = true;
    const std::lock_guard lock(generator.mutex());
    generator.set_state(state);
  }
  return changed;
}

Unwritten::Unwritten() : counting_(with_counting()) {}

void Unwritten::add(const at::Tensor& tensor) {
  if (tensor.defined() && !tensor.is_inference()) versions_.emplace_back(tensor, tensor._version());
}

void Unwritten::add(const Operand& operand) {
  if (const auto* plain = std::get_if<at::Tensor>(&operand)) return add(*plain);
  const auto& quantized = std::get<QuantizedTensor>(operand);
  for (const QuantizedData* data : {&quantized.rowwise, &quantized.columnwise}) {
    add(data->codes);
    add(data->scale_inv);
    add(data->tensor_scale);
  }
}

bool Unwritten::was_written() const {
  return std::ranges::any_of(versions_,
                             [](const auto& each) { return each.first._version() != each.second; });
}

}  // namespace telens
