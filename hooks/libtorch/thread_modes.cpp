// The parts of hooks/tensor_ops.h that use LibTorch's internals: modes of the calling thread, and
// checks of foreign code.
#include "hooks/tensor_ops.h"

#include <ATen/Context.h>
#include <ATen/core/Generator.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include <algorithm>
#include <cstring>
#include <mutex>
#include <utility>
#include <vector>

#include "core/ops/torch_internals.h"
#include "core/quantization/autocast.h"
#include "core/torch_compat.h"
#include "hooks/libtorch/c10d_group.h"

namespace telens::tensor_ops {

std::uint32_t get_version(const TensorHandle& x) { return telens::get_version(to_torch(x)); }

RankGroupPtr running_amax_group() {
  const AutocastState* autocast = current_autocast();
  return autocast == nullptr ? nullptr : to_rank_group(autocast->options.group.get());
}

}  // namespace telens::tensor_ops

namespace telens {

struct PlainTensorScope::Impl {
  ops::PlainTensors plain;
};
PlainTensorScope::PlainTensorScope() : impl_(std::make_unique<Impl>()) {}
PlainTensorScope::~PlainTensorScope() = default;

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

struct RandomState::Impl {
  std::vector<std::pair<at::Generator, at::Tensor>> states;
};

RandomState::RandomState(std::optional<DeviceId> device) : impl_(std::make_unique<Impl>()) {
  const auto add = [this](at::Device of) {
    at::Generator generator = at::globalContext().defaultGenerator(of);
    at::Tensor state = get_state(generator);
    impl_->states.emplace_back(std::move(generator), std::move(state));
  };
  add(at::Device(at::kCPU));
  if (device && !device->is_cpu()) add(to_torch(*device));
}

RandomState::~RandomState() = default;

bool RandomState::restore() {
  bool changed = false;
  for (auto& [generator, state] : impl_->states) {
    if (are_equal(get_state(generator), state)) continue;
    changed = true;
    const std::lock_guard lock(generator.mutex());
    generator.set_state(state);
  }
  return changed;
}

struct MutationGuard::Impl {
  c10::impl::ForceDispatchKeyGuard counting{with_counting()};
  std::vector<std::pair<at::Tensor, std::uint32_t>> versions;

  void add(const at::Tensor& tensor) {
    if (tensor.defined() && !tensor.is_inference())
      versions.emplace_back(tensor, tensor._version());
  }
};

MutationGuard::MutationGuard() : impl_(std::make_unique<Impl>()) {}
MutationGuard::~MutationGuard() = default;

void MutationGuard::add(const TensorHandle& tensor) { impl_->add(to_torch(tensor)); }

bool MutationGuard::was_written() const {
  return std::ranges::any_of(impl_->versions,
                             [](const auto& each) { return each.first._version() != each.second; });
}

}  // namespace telens
