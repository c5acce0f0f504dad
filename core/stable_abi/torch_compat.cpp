// Implements core/torch_compat.h on the stable ABI.
#include "core/torch_compat.h"

#include <torch/headeronly/version.h>

#include <atomic>
#include <cstring>
#include <memory>
#include <utility>

#include "core/base/version.h"

namespace telens {
namespace {

// The owner of a handle: the stable ABI does not expose the reference count of tensors.
struct Owner {
  explicit Owner(at::Tensor owned) : tensor(std::move(owned)) {}

  std::atomic<int> count{1};
  at::Tensor tensor;
};

Owner* get_owner(void* owner) { return static_cast<Owner*>(owner); }

const TensorHandle::Framework kStableTorch{
    .retain = [](void* owner) { get_owner(owner)->count.fetch_add(1, std::memory_order_relaxed); },
    .release =
        [](void* owner) {
          if (get_owner(owner)->count.fetch_sub(1, std::memory_order_acq_rel) == 1) {
            delete get_owner(owner);
          }
        },
    .get_data = [](void* owner) -> void* {
      // Observers only read: the const access does not copy lazily cloned memory.
      return const_cast<void*>(get_owner(owner)->tensor.const_data_ptr());
    }};

}  // namespace

std::string_view torch_api_version() { return {}; }

TensorHandle::TensorHandle(const at::Tensor& tensor) {
  if (!tensor.defined()) return;
  Layout layout{.dtype = to_handle(tensor.scalar_type()),
                .element_size = static_cast<std::int32_t>(tensor.element_size()),
                .device = to_handle(tensor.device()),
                .is_strided = tensor.is_strided()};
  if (layout.is_strided) {
    layout.sizes = tensor.sizes();
    layout.strides = tensor.strides();
  }
  *this = TensorHandle(kStableTorch, new Owner(tensor), layout);
}

at::Tensor to_torch(const TensorHandle& handle) {
  if (!handle.defined()) return {};
  if (handle.framework() == &kStableTorch) return get_owner(handle.owner())->tensor;
  return at::from_blob(
      handle.data_ptr(), at::IntArrayRef(handle.sizes()), at::IntArrayRef(handle.strides()),
      std::make_shared<const TensorHandle>(handle),
      at::TensorOptions(to_torch(handle.dtype())).device(to_torch(handle.device())));
}

}  // namespace telens
