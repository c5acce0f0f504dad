#include "core/torch_compat.h"

#include <ATen/ops/from_blob.h>
#include <torch/version.h>

#include <utility>

#include "core/base/version.h"

namespace telens {
namespace {

at::TensorImpl* get_impl(void* owner) { return static_cast<at::TensorImpl*>(owner); }

using TensorPtr = c10::intrusive_ptr<at::TensorImpl, at::UndefinedTensorImpl>;

const TensorHandle::Framework kLibTorch{
    .retain = [](void* owner) { TensorPtr::reclaim_copy(get_impl(owner)).release(); },
    .release = [](void* owner) { TensorPtr::reclaim(get_impl(owner)); },
    .get_data = [](void* owner) -> void* {
      // Observers only read: the const access does not copy lazily cloned memory.
      return const_cast<void*>(
          at::Tensor(TensorPtr::reclaim_copy(get_impl(owner))).const_data_ptr());
    }};

static_assert(static_cast<DType>(at::kByte) == DType::uint8);
static_assert(static_cast<DType>(at::kLong) == DType::int64);
static_assert(static_cast<DType>(at::kHalf) == DType::float16);
static_assert(static_cast<DType>(at::kFloat) == DType::float32);
static_assert(static_cast<DType>(at::kDouble) == DType::float64);
static_assert(static_cast<DType>(at::kBool) == DType::boolean);
static_assert(static_cast<DType>(at::kBFloat16) == DType::bfloat16);
static_assert(static_cast<int>(at::kCPU) == DeviceId::kCpu);
static_assert(static_cast<int>(at::kCUDA) == DeviceId::kCuda);

bool has_plain_layout(const at::TensorImpl& tensor) {
  return tensor.layout() == at::kStrided && !tensor.is_nested() &&
         !tensor.has_symbolic_sizes_strides();
}

}  // namespace

std::string_view torch_version() { return TORCH_VERSION; }
std::string_view torch_api_version() { return TORCH_VERSION; }

TensorHandle::TensorHandle(const at::Tensor& tensor) {
  if (!tensor.defined()) return;
  const at::TensorImpl& impl = *tensor.unsafeGetTensorImpl();
  Layout layout{.dtype = to_handle(tensor.scalar_type()),
                .element_size = static_cast<std::int32_t>(tensor.element_size()),
                .device = to_handle(tensor.device()),
                .is_strided = has_plain_layout(impl)};
  if (layout.is_strided) {
    layout.sizes = {impl.sizes().data(), impl.sizes().size()};
    layout.strides = {impl.strides().data(), impl.strides().size()};
  }
  *this = TensorHandle(kLibTorch, TensorPtr(tensor.getIntrusivePtr()).release(), layout);
}

at::Tensor to_torch(const TensorHandle& handle) {
  if (!handle.defined()) return {};
  if (handle.framework() == &kLibTorch) {
    return at::Tensor(TensorPtr::reclaim_copy(get_impl(handle.owner())));
  }
  return at::from_blob(
      handle.data_ptr(), at::IntArrayRef(handle.sizes().data(), handle.dim()),
      at::IntArrayRef(handle.strides().data(), handle.dim()), [handle](void*) {},
      at::TensorOptions().dtype(to_torch(handle.dtype())).device(to_torch(handle.device())));
}

}  // namespace telens
