// Implements on the stable ABI what hooks/libtorch/thread_modes.cpp implements with LibTorch's
// internals. The Python module passes the rest (hooks/stable_abi/python_functions.h).
#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "core/base/version.h"
#include "core/torch_compat.h"
#include "hooks/stable_abi/python_functions.h"
#include "hooks/tensor_ops.h"

namespace telens::tensor_ops {

std::uint32_t get_version(const TensorHandle& x) {
  const at::Tensor tensor = to_torch(x);
  return tensor.is_inference() ? 0 : static_cast<std::uint32_t>(tensor._version());
}

// The observer has no FP8 layers, so no autocast region runs.
RankGroupPtr running_amax_group() { return nullptr; }

}  // namespace telens::tensor_ops

namespace telens {

// The stable ABI cannot disable modes. Only graph captures require it, and the observer has none.
struct PlainTensorScope::Impl {};
PlainTensorScope::PlainTensorScope() = default;
PlainTensorScope::~PlainTensorScope() = default;

namespace {

RandomStateFunctions& get_functions() {
  static auto& functions = *new RandomStateFunctions;
  return functions;
}

}  // namespace

void set_random_state_functions(RandomStateFunctions functions) {
  get_functions() = std::move(functions);
}

namespace {

std::string& get_version_of_torch() {
  static auto& version = *new std::string;
  return version;
}

}  // namespace

void set_torch_version(std::string version) { get_version_of_torch() = std::move(version); }
std::string_view torch_version() { return get_version_of_torch(); }

struct RandomState::Impl {
  std::vector<std::uint8_t> state;
};

RandomState::RandomState(std::optional<DeviceId>) : impl_(std::make_unique<Impl>()) {
  if (get_functions().get) impl_->state = get_functions().get();
}

RandomState::~RandomState() = default;

bool RandomState::restore() {
  const RandomStateFunctions& functions = get_functions();
  if (!functions.get || functions.get() == impl_->state) return false;
  functions.set(impl_->state);
  return true;
}

struct MutationGuard::Impl {
  std::vector<std::pair<TensorHandle, std::uint32_t>> versions;

  void add(const TensorHandle& tensor) {
    if (tensor.defined()) versions.emplace_back(tensor, tensor_ops::get_version(tensor));
  }
};

MutationGuard::MutationGuard() : impl_(std::make_unique<Impl>()) {}
MutationGuard::~MutationGuard() = default;

void MutationGuard::add(const TensorHandle& tensor) { impl_->add(tensor); }

bool MutationGuard::was_written() const {
  return std::ranges::any_of(impl_->versions, [](const auto& each) {
    return tensor_ops::get_version(each.first) != each.second;
  });
}

}  // namespace telens
