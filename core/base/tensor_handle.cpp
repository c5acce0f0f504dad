#include "core/base/tensor_handle.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <utility>

namespace telens {
namespace {

constexpr std::array<std::string_view, 27> kDTypeNames{"Byte",           "Char",
                                                       "Short",          "Int",
                                                       "Long",           "Half",
                                                       "Float",          "Double",
                                                       "ComplexHalf",    "ComplexFloat",
                                                       "ComplexDouble",  "Bool",
                                                       "QInt8",          "QUInt8",
                                                       "QInt32",         "BFloat16",
                                                       "QUInt4x2",       "QUInt2x4",
                                                       "Bits1x8",        "Bits2x4",
                                                       "Bits4x2",        "Bits8",
                                                       "Bits16",         "Float8_e5m2",
                                                       "Float8_e4m3fn",  "Float8_e5m2fnuz",
                                                       "Float8_e4m3fnuz"};

constexpr std::array<std::string_view, 21> kDeviceNames{
    "cpu",  "cuda", "mkldnn", "opengl", "opencl", "ideep", "hip",
    "fpga", "maia", "xla",    "vulkan", "metal",  "xpu",   "mps",
    "meta", "hpu",  "ve",     "lazy",   "ipu",    "mtia",  "privateuseone"};

// The owner of memory that belongs to no framework.
struct HostMemory {
  std::atomic<int> shares{1};
  std::unique_ptr<std::byte[]> bytes;
};

const TensorHandle::Framework kNoFramework{
    .retain =
        [](void* owner) {
          static_cast<HostMemory*>(owner)->shares.fetch_add(1, std::memory_order_relaxed);
        },
    .release =
        [](void* owner) {
          auto* memory = static_cast<HostMemory*>(owner);
          if (memory->shares.fetch_sub(1, std::memory_order_acq_rel) == 1) delete memory;
        },
    .get_data = [](void* owner) -> void* { return static_cast<HostMemory*>(owner)->bytes.get(); }};

std::int32_t size_in_bytes(DType dtype) {
  switch (dtype) {
    case DType::uint8:
    case DType::int8:
    case DType::boolean:
      return 1;
    case DType::int16:
    case DType::float16:
    case DType::bfloat16:
      return 2;
    case DType::int32:
    case DType::float32:
      return 4;
    case DType::int64:
    case DType::float64:
      return 8;
  }
  raise<InternalError>("the size of an element of {} is not known", get_name(dtype));
}

}  // namespace

std::string get_name(DType dtype) {
  const auto number = static_cast<std::size_t>(dtype);
  return number < kDTypeNames.size() ? std::string(kDTypeNames[number])
                                     : fmt::format("dtype {}", static_cast<int>(dtype));
}

std::string DeviceId::str() const {
  const auto number = static_cast<std::size_t>(type);
  std::string name = number < kDeviceNames.size() ? std::string(kDeviceNames[number])
                                                  : fmt::format("device type {}", int{type});
  return index < 0 ? name : fmt::format("{}:{}", name, int{index});
}

TensorHandle::TensorHandle(const Framework& framework, void* owner, const Layout& layout)
    : framework_(&framework),
      owner_(owner),
      dtype_(layout.dtype),
      device_(layout.device),
      is_strided_(layout.is_strided),
      element_size_(layout.element_size),
      dims_(layout.sizes.size()) {
  std::int64_t* into = few_dims_.data();
  if (dims_ > kInlineDims) {
    more_dims_ = std::make_unique<std::int64_t[]>(2 * dims_);
    into = more_dims_.get();
  }
  into = std::ranges::copy(layout.sizes, into).out;
  std::ranges::copy(layout.strides, into);
}

TensorHandle TensorHandle::on_host(DType dtype, std::vector<std::int64_t> sizes) {
  std::vector<std::int64_t> strides(sizes.size());
  std::int64_t elements = 1;
  for (std::size_t i = sizes.size(); i-- > 0;) {
    strides[i] = std::max<std::int64_t>(elements, 1);
    elements *= sizes[i];
  }
  const std::int32_t element_size = size_in_bytes(dtype);
  auto memory = std::make_unique<HostMemory>();
  memory->bytes = std::make_unique<std::byte[]>(static_cast<std::size_t>(elements * element_size));
  return {kNoFramework,
          memory.release(),
          {.dtype = dtype, .element_size = element_size, .sizes = sizes, .strides = strides}};
}

TensorHandle TensorHandle::on_host(std::span<const std::int64_t> values) {
  TensorHandle made = on_host(DType::int64, {static_cast<std::int64_t>(values.size())});
  std::ranges::copy(values, made.mutable_data_ptr<std::int64_t>());
  return made;
}

void TensorHandle::take_layout(const TensorHandle& other) {
  framework_ = other.framework_;
  owner_ = other.owner_;
  dtype_ = other.dtype_;
  device_ = other.device_;
  is_strided_ = other.is_strided_;
  element_size_ = other.element_size_;
  dims_ = other.dims_;
  if (dims_ <= kInlineDims) std::copy_n(other.few_dims_.begin(), 2 * dims_, few_dims_.begin());
}

TensorHandle::TensorHandle(const TensorHandle& other) {
  take_layout(other);
  if (other.more_dims_) {
    more_dims_ = std::make_unique<std::int64_t[]>(2 * dims_);
    std::copy_n(other.more_dims_.get(), 2 * dims_, more_dims_.get());
  }
  if (owner_ != nullptr) framework_->retain(owner_);
}

TensorHandle::TensorHandle(TensorHandle&& other) noexcept {
  take_layout(other);
  more_dims_ = std::move(other.more_dims_);
  other.owner_ = nullptr;
  other.dims_ = 0;
}

TensorHandle& TensorHandle::operator=(const TensorHandle& other) {
  if (this != &other) *this = TensorHandle(other);
  return *this;
}

TensorHandle& TensorHandle::operator=(TensorHandle&& other) noexcept {
  if (this == &other) return *this;
  if (owner_ != nullptr) framework_->release(owner_);
  take_layout(other);
  more_dims_ = std::move(other.more_dims_);
  other.owner_ = nullptr;
  other.dims_ = 0;
  return *this;
}

TensorHandle::~TensorHandle() {
  if (owner_ != nullptr) framework_->release(owner_);
}

std::int64_t TensorHandle::size(std::int64_t dimension) const {
  const auto all = sizes();
  const auto count = static_cast<std::int64_t>(all.size());
  const std::int64_t index = dimension < 0 ? dimension + count : dimension;
  if (index < 0 || index >= count) {
    raise<ShapeError>("a tensor of {} dimensions has no dimension {}", count, dimension);
  }
  return all[static_cast<std::size_t>(index)];
}

std::int64_t TensorHandle::numel() const {
  std::int64_t elements = 1;
  for (const std::int64_t size : sizes()) elements *= size;
  return elements;
}

bool TensorHandle::is_contiguous() const {
  if (numel() == 0) return true;
  std::int64_t expected = 1;
  for (std::size_t i = dims_; i-- > 0;) {
    const std::int64_t size = sizes()[i];
    if (size != 1 && strides()[i] != expected) return false;
    expected *= size;
  }
  return true;
}

void TensorHandle::raise_not_strided() {
  raise<UsageError>(
      "the tensor has no strided memory (it is sparse, nested or symbolic); pass a "
      "dense tensor");
}

void TensorHandle::check_type(DType expected) const {
  if (dtype_ == expected) return;
  raise<UsageError>("expected a tensor of dtype {}, got {}", get_name(expected), get_name(dtype_));
}

}  // namespace telens
