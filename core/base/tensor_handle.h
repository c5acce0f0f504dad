// A tensor of any framework: memory with a dtype, sizes, strides, a device and an owner. No
// LibTorch.
//
// The debug session, its statistics engine and its observing features see tensors only as handles.
// core/torch_compat.h converts between handles and at::Tensor.
#pragma once

#include <array>
#include <concepts>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/error.h"
#include "core/base/torch_tensor.h"

namespace telens {

// The values of c10::ScalarType. A handle may have a value that is not listed here.
enum class DType : std::int8_t {
  uint8 = 0,
  int8 = 1,
  int16 = 2,
  int32 = 3,
  int64 = 4,
  float16 = 5,
  float32 = 6,
  float64 = 7,
  boolean = 11,
  bfloat16 = 15,
};

// Returns PyTorch's name: "Float", "BFloat16", "Long", ...; "dtype 99" for an unknown number.
TELENS_EXPORT std::string get_name(DType dtype);
// Returns true for integers, and false for boolean.
constexpr bool is_integer(DType dtype) { return dtype <= DType::int64; }

// `type` has the values of c10::DeviceType.
struct DeviceId {
  static constexpr std::int8_t kCpu = 0;
  static constexpr std::int8_t kCuda = 1;

  std::int8_t type = kCpu;
  std::int8_t index = -1;  // -1 if the device has no number

  bool is_cpu() const { return type == kCpu; }
  // Returns PyTorch's name: "cpu", "cuda:0", ...
  TELENS_EXPORT std::string str() const;

  friend bool operator==(const DeviceId&, const DeviceId&) = default;
};

// A queue of work on a device; `id` is the framework's number of it.
struct StreamHandle {
  DeviceId device;
  std::int64_t id = 0;

  friend bool operator==(const StreamHandle&, const StreamHandle&) = default;
};

// Shares ownership of the tensor's memory: a copy of a handle is another share. Sizes and strides
// are those at the time of the conversion. Up to kInlineDims dimensions need no allocation.
class TELENS_EXPORT TensorHandle {
 public:
  static constexpr std::size_t kInlineDims = 5;

  // What a framework can do with the owner of a tensor. Each framework has one static object.
  struct Framework {
    void (*retain)(void* owner);
    void (*release)(void* owner);
    void* (*get_data)(void* owner);  // the address of the first element
  };

  struct Layout {
    DType dtype = DType::float32;
    std::int32_t element_size = 4;  // bytes
    DeviceId device = {};
    std::span<const std::int64_t> sizes = {};
    std::span<const std::int64_t> strides = {};  // in elements
    // False for a tensor without strided memory, such as a sparse one: sizes, strides and elements
    // are not available.
    bool is_strided = true;
  };

  // An undefined handle.
  TensorHandle() = default;
  // Shares ownership of a LibTorch tensor; an undefined handle for an undefined tensor. Defined in
  // core/torch_compat.cpp.
  TensorHandle(const at::Tensor& tensor);  // NOLINT(google-explicit-constructor)
  // Takes over one share of `owner`.
  TensorHandle(const Framework& framework, void* owner, const Layout& layout);

  // Returns a tensor in host memory that belongs to no framework, filled with zeros.
  static TensorHandle on_host(DType dtype, std::vector<std::int64_t> sizes);
  static TensorHandle on_host(std::span<const std::int64_t> values);

  TensorHandle(const TensorHandle& other);
  TensorHandle(TensorHandle&& other) noexcept;
  TensorHandle& operator=(const TensorHandle& other);
  TensorHandle& operator=(TensorHandle&& other) noexcept;
  ~TensorHandle();

  bool defined() const { return owner_ != nullptr; }

  // The following require a defined handle.

  DType dtype() const { return dtype_; }
  DeviceId device() const { return device_; }
  std::int32_t element_size() const { return element_size_; }
  bool is_strided() const { return is_strided_; }

  // These throw UsageError if the tensor is not strided.
  std::size_t dim() const { return sizes().size(); }
  std::span<const std::int64_t> sizes() const {
    check_strided();
    return {dims(), dims_};
  }
  std::span<const std::int64_t> strides() const {
    check_strided();
    return {dims() + dims_, dims_};
  }
  // Negative dimensions count from the last one.
  std::int64_t size(std::int64_t dimension) const;
  std::int64_t numel() const;
  std::size_t nbytes() const {
    return static_cast<std::size_t>(numel()) * static_cast<std::size_t>(element_size_);
  }
  bool is_contiguous() const;

  // Returns the address of the first element, on the tensor's device.
  void* data_ptr() const { return framework_->get_data(owner_); }
  const void* const_data_ptr() const { return data_ptr(); }
  // Throws UsageError if T is not the element type.
  template <typename T>
  const T* const_data_ptr() const {
    check_type(dtype_of<T>());
    return static_cast<const T*>(data_ptr());
  }
  template <typename T>
  T* mutable_data_ptr() const {
    check_type(dtype_of<T>());
    return static_cast<T*>(data_ptr());
  }

  // Returns true if both are shares of one tensor object.
  bool is_same(const TensorHandle& other) const { return owner_ == other.owner_; }

  // For conversions.
  const Framework* framework() const { return framework_; }
  void* owner() const { return owner_; }

 private:
  template <typename T>
  static constexpr DType dtype_of() {
    if constexpr (std::same_as<T, std::int64_t>) {
      return DType::int64;
    } else if constexpr (std::same_as<T, double>) {
      return DType::float64;
    } else if constexpr (std::same_as<T, std::int32_t>) {
      return DType::int32;
    } else if constexpr (std::same_as<T, std::uint8_t>) {
      return DType::uint8;
    } else {
      static_assert(std::same_as<T, float>, "add the element type to dtype_of");
      return DType::float32;
    }
  }

  void check_strided() const {
    if (!is_strided_) [[unlikely]] {
      raise_not_strided();
    }
  }
  [[noreturn]] static void raise_not_strided();
  void check_type(DType expected) const;
  void take_layout(const TensorHandle& other);

  // The sizes, then the strides.
  const std::int64_t* dims() const { return more_dims_ ? more_dims_.get() : few_dims_.data(); }

  const Framework* framework_ = nullptr;
  void* owner_ = nullptr;
  DType dtype_ = DType::float32;
  DeviceId device_;
  bool is_strided_ = true;
  std::int32_t element_size_ = 0;
  std::size_t dims_ = 0;
  std::array<std::int64_t, 2 * kInlineDims> few_dims_;  // its first 2 * dims_ elements are set
  std::unique_ptr<std::int64_t[]> more_dims_;           // set for more dimensions
};

}  // namespace telens
