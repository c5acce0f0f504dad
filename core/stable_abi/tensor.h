// The part of LibTorch's C++ API that the statistics need, on LibTorch's stable ABI.
//
// libtelens_observe.so is compiled from the same sources as libtelens.so, but against this header
// instead of ATen's (cmake/TelensObserver.cmake generates headers of ATen's names that include this
// file). It uses only functions of torch/csrc/stable and torch/csrc/inductor/aoti_torch/c/shim.h,
// so one binary runs under every torch from 2.10 on.
//
// Names, arguments and results are ATen's. Add missing functions when a source needs them.
// Functions run through PyTorch's dispatcher unless they only read metadata.
#pragma once

#include <torch/csrc/stable/tensor.h>
#include <torch/headeronly/core/DeviceType.h>
#include <torch/headeronly/core/ScalarType.h>
#include <torch/headeronly/util/BFloat16.h>
#include <torch/headeronly/util/Half.h>

#include <algorithm>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <initializer_list>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

// The types are not in at:: and c10::, because LibTorch's symbols of these names are in the
// process.
namespace telens::stable {

using c10::BFloat16;
using c10::DeviceType;
using c10::Half;
using c10::ScalarType;
using string_view = std::string_view;
using DeviceIndex = std::int8_t;

// An error of a function of the stable ABI. PyTorch prints its message instead of returning it.
class Error : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
  const char* what_without_backtrace() const { return what(); }
};

template <typename T>
class ArrayRef : public std::span<const T> {
 public:
  using std::span<const T>::span;
  ArrayRef() = default;
  ArrayRef(const std::vector<T>& values) : std::span<const T>(values) {}  // NOLINT
  ArrayRef(std::span<const T> values) : std::span<const T>(values) {}     // NOLINT
  // Only for arguments: the list must outlive the call.
  ArrayRef(const std::initializer_list<T>& values)  // NOLINT
      : std::span<const T>(values.begin() == values.end() ? nullptr : values.begin(),
                           values.size()) {}
  ArrayRef(const T& value) : std::span<const T>(&value, 1) {}  // NOLINT

  std::vector<T> vec() const { return {this->begin(), this->end()}; }
  bool equals(ArrayRef other) const {
    return std::equal(this->begin(), this->end(), other.begin(), other.end());
  }
  friend bool operator==(ArrayRef a, ArrayRef b) { return a.equals(b); }
};
using IntArrayRef = ArrayRef<std::int64_t>;

struct Device {
  Device() = default;
  Device(DeviceType type, DeviceIndex index = -1) : type_(type), index_(index) {}  // NOLINT

  DeviceType type() const { return type_; }
  DeviceIndex index() const { return index_; }
  bool has_index() const { return index_ >= 0; }
  bool is_cpu() const { return type_ == DeviceType::CPU; }
  bool is_cuda() const { return type_ == DeviceType::CUDA; }
  // Returns PyTorch's name: "cpu", "cuda:0", ...
  std::string str() const;
  friend bool operator==(const Device&, const Device&) = default;

 private:
  DeviceType type_ = DeviceType::CPU;
  DeviceIndex index_ = -1;
};

// Returns "[2, 3]".
std::string str(IntArrayRef sizes);

inline std::int64_t multiply_integers(IntArrayRef values) {
  std::int64_t product = 1;
  for (const std::int64_t each : values) product *= each;
  return product;
}

inline constexpr ScalarType kByte = ScalarType::Byte;
inline constexpr ScalarType kShort = ScalarType::Short;
inline constexpr ScalarType kInt = ScalarType::Int;
inline constexpr ScalarType kLong = ScalarType::Long;
inline constexpr ScalarType kHalf = ScalarType::Half;
inline constexpr ScalarType kFloat = ScalarType::Float;
inline constexpr ScalarType kDouble = ScalarType::Double;
inline constexpr ScalarType kBool = ScalarType::Bool;
inline constexpr ScalarType kBFloat16 = ScalarType::BFloat16;
using c10::kCPU;
using c10::kCUDA;

bool isFloatingType(ScalarType dtype);

class TensorOptions {
 public:
  TensorOptions() = default;
  TensorOptions(ScalarType dtype) : dtype_(dtype) {}        // NOLINT
  TensorOptions(const Device& device) : device_(device) {}  // NOLINT

  TensorOptions dtype(ScalarType dtype) const {
    TensorOptions changed = *this;
    changed.dtype_ = dtype;
    return changed;
  }
  TensorOptions device(const Device& device) const {
    TensorOptions changed = *this;
    changed.device_ = device;
    return changed;
  }
  TensorOptions pinned_memory(bool pinned) const {
    TensorOptions changed = *this;
    changed.pinned_ = pinned;
    return changed;
  }
  ScalarType dtype() const { return dtype_; }
  const Device& device() const { return device_; }
  bool pinned_memory() const { return pinned_; }

 private:
  ScalarType dtype_ = kFloat;
  Device device_;
  bool pinned_ = false;
};

class Tensor;
using TensorList = ArrayRef<Tensor>;

// A number as an argument of an operator. The stable ABI cannot pass numbers without a dtype, so it
// is passed as a 0-dim tensor of the other operand's dtype.
struct Scalar {
  template <typename T>
  requires std::is_arithmetic_v<T> Scalar(T number)
      : value(static_cast<double>(number)), integer(as_integer(number)) {}  // NOLINT

  double value;
  std::int64_t integer;  // exact for integers

 private:
  template <typename T>
  static std::int64_t as_integer(T number) {
    if constexpr (std::integral<T>) {
      return static_cast<std::int64_t>(number);
    } else {
      return 0;
    }
  }
};

class Tensor {
 public:
  Tensor() = default;
  explicit Tensor(torch::stable::Tensor tensor) : tensor_(std::move(tensor)) {}
  // Takes ownership.
  static Tensor steal(AtenTensorHandle handle) { return Tensor(torch::stable::Tensor(handle)); }

  // Shares the ownership of memory that the tensor is a view of.
  void keep_alive(std::shared_ptr<const void> owner) { owner_ = std::move(owner); }

  bool defined() const { return tensor_.has_value(); }
  const torch::stable::Tensor& stable() const { return *tensor_; }
  AtenTensorHandle handle() const { return tensor_->get(); }

  IntArrayRef sizes() const;
  IntArrayRef strides() const;
  std::int64_t dim() const;
  std::int64_t size(std::int64_t dimension) const;
  std::int64_t stride(std::int64_t dimension) const;
  std::int64_t numel() const;
  std::int64_t element_size() const { return static_cast<std::int64_t>(tensor_->element_size()); }
  std::size_t nbytes() const { return static_cast<std::size_t>(numel() * element_size()); }
  // Throws c10::Error for a dtype that the stable ABI does not know.
  ScalarType scalar_type() const;
  Device device() const;
  bool is_cpu() const { return device().is_cpu(); }
  bool is_contiguous() const;
  bool is_non_overlapping_and_dense() const;
  bool is_strided() const;
  // Returns true if both share a storage.
  bool is_alias_of(const Tensor& other) const;
  // Returns true if both are the same view of the same memory. Tensor objects cannot be compared.
  bool is_same(const Tensor& other) const;
  // The counter of in-place changes.
  std::int64_t _version() const;
  bool is_inference() const;
  TensorOptions options() const { return TensorOptions(scalar_type()).device(device()); }

  const void* const_data_ptr() const;
  void* mutable_data_ptr() const;
  void* data_ptr() const { return mutable_data_ptr(); }
  template <typename T>
  const T* const_data_ptr() const {
    check_dtype(static_cast<int>(c10::CppTypeToScalarType<T>::value));
    return static_cast<const T*>(const_data_ptr());
  }
  template <typename T>
  T* mutable_data_ptr() const {
    check_dtype(static_cast<int>(c10::CppTypeToScalarType<T>::value));
    return static_cast<T*>(mutable_data_ptr());
  }
  // Returns the value of a tensor with one element. Waits for its device.
  template <typename T>
  T item() const {
    const Tensor host = to(kCPU, c10::CppTypeToScalarType<T>::value);
    return *host.const_data_ptr<T>();
  }

  // Views and copies.
  Tensor contiguous() const;
  Tensor detach() const;
  Tensor clone() const;
  Tensor cpu() const { return to(Device(kCPU)); }
  Tensor to(ScalarType dtype) const;
  Tensor to(const Device& device, bool non_blocking = false) const;
  Tensor to(const Device& device, ScalarType dtype) const { return to(device).to(dtype); }
  Tensor to(const TensorOptions& options, bool non_blocking = false, bool copy = false) const;
  Tensor view(IntArrayRef sizes) const;
  Tensor view(ScalarType dtype) const;
  Tensor reshape(IntArrayRef sizes) const;
  Tensor flatten() const { return reshape({-1}); }
  Tensor narrow(std::int64_t dimension, std::int64_t start, std::int64_t length) const;
  Tensor slice(std::int64_t dimension, std::int64_t start,
               std::optional<std::int64_t> end = std::nullopt) const;
  Tensor select(std::int64_t dimension, std::int64_t index) const;
  Tensor operator[](std::int64_t index) const { return select(0, index); }
  Tensor t() const { return transpose(0, 1); }
  Tensor transpose(std::int64_t first, std::int64_t second) const;
  Tensor expand(IntArrayRef sizes) const;
  Tensor expand_as(const Tensor& other) const { return expand(other.sizes()); }
  Tensor unsqueeze(std::int64_t dimension) const;
  Tensor repeat(IntArrayRef times) const;
  Tensor repeat_interleave(std::int64_t times, std::int64_t dimension) const;
  std::vector<Tensor> unbind(std::int64_t dimension = 0) const;
  std::vector<Tensor> split(std::int64_t size, std::int64_t dimension = 0) const;
  Tensor take(const Tensor& indices) const;
  Tensor masked_fill(const Tensor& mask, const Scalar& value) const;

  // In place.
  const Tensor& copy_(const Tensor& source, bool non_blocking = false) const;
  const Tensor& fill_(const Scalar& value) const;
  const Tensor& zero_() const;
  const Tensor& add_(const Tensor& other) const;
  const Tensor& mul_(const Tensor& other) const;
  const Tensor& abs_() const;
  const Tensor& random_() const;
  const Tensor& clamp_min_(const Scalar& least) const;
  const Tensor& masked_fill_(const Tensor& mask, const Scalar& value) const;
  const Tensor& index_copy_(std::int64_t dimension, const Tensor& indices,
                            const Tensor& source) const;
  Tensor& operator+=(const Tensor& other) { return add_(other), *this; }
  Tensor& operator*=(const Tensor& other) { return mul_(other), *this; }

  // Elementwise.
  Tensor abs() const;
  Tensor exp() const;
  Tensor log() const;
  Tensor reciprocal() const;
  Tensor isfinite() const;
  Tensor isinf() const;
  Tensor isnan() const;
  Tensor clamp_min(const Scalar& least) const;
  Tensor logical_not() const;
  Tensor logical_and(const Tensor& other) const;
  Tensor logical_or(const Tensor& other) const;
  Tensor eq(const Tensor& other) const;
  Tensor ne(const Scalar& value) const;
  Tensor mul(const Tensor& other) const;
  Tensor mul(const Scalar& factor) const;
  Tensor bitwise_and(const Scalar& mask) const;
  Tensor bitwise_or(const Tensor& other) const;
  Tensor bitwise_or(const Scalar& mask) const;
  Tensor bitwise_xor(const Tensor& other) const;
  Tensor bitwise_right_shift(const Scalar& bits) const;

  // Reductions.
  Tensor sum() const;
  Tensor sum(std::int64_t dimension) const;
  Tensor any() const;
  // Over all dimensions if none is given.
  Tensor amax(IntArrayRef dimensions = {}) const;
  Tensor amin() const;
  Tensor argmax(std::int64_t dimension) const;
  // (values, indices)
  std::tuple<Tensor, Tensor> max(std::int64_t dimension) const;

 private:
  // expected: a ScalarType. Its name would count as a symbol of LibTorch.
  void check_dtype(int expected) const;

  std::optional<torch::stable::Tensor> tensor_;
  std::shared_ptr<const void> owner_;
};

Tensor operator+(const Tensor& a, const Tensor& b);
Tensor operator-(const Tensor& a, const Tensor& b);
Tensor operator*(const Tensor& a, const Tensor& b);
Tensor operator/(const Tensor& a, const Tensor& b);
Tensor operator+(const Tensor& a, const Scalar& b);
Tensor operator*(const Tensor& a, const Scalar& b);
Tensor operator==(const Tensor& a, const Tensor& b);
Tensor operator<=(const Tensor& a, const Tensor& b);
Tensor operator==(const Tensor& a, const Scalar& b);
Tensor operator!=(const Tensor& a, const Scalar& b);
Tensor operator<(const Tensor& a, const Scalar& b);
Tensor operator>(const Tensor& a, const Scalar& b);

// Elements are uninitialized.
Tensor empty(IntArrayRef sizes, const TensorOptions& options = {});
Tensor empty_like(const Tensor& like);
Tensor empty_like(const Tensor& like, const TensorOptions& options);
Tensor empty_strided(IntArrayRef sizes, IntArrayRef strides, const TensorOptions& options = {});
Tensor zeros(IntArrayRef sizes, const TensorOptions& options = {});
Tensor zeros_like(const Tensor& like);
Tensor ones(IntArrayRef sizes, const TensorOptions& options = {});
Tensor full(IntArrayRef sizes, const Scalar& value, const TensorOptions& options = {});
Tensor full_like(const Tensor& like, const Scalar& value);
Tensor scalar_tensor(const Scalar& value, const TensorOptions& options = {});
Tensor tensor(const std::vector<std::int64_t>& values, const TensorOptions& options);
Tensor arange(std::int64_t end, const TensorOptions& options);
Tensor arange(std::int64_t start, std::int64_t end, const TensorOptions& options);
// A view of memory that belongs to `owner`. Operators' results that are views of it do not keep it
// alive.
Tensor from_blob(const void* data, IntArrayRef sizes, IntArrayRef strides,
                 std::shared_ptr<const void> owner, const TensorOptions& options);
// Copies the memory and then calls `release`: before torch 2.11 the stable ABI has no tensor whose
// memory another library owns.
Tensor from_blob(void* data, IntArrayRef sizes, const std::function<void(void*)>& release,
                 const TensorOptions& options);

Tensor cat(TensorList tensors, std::int64_t dimension = 0);
Tensor stack(TensorList tensors, std::int64_t dimension = 0);
Tensor where(const Tensor& condition, const Tensor& a, const Tensor& b);
Tensor where(const Tensor& condition, const Tensor& a, const Scalar& b);
Tensor eq(const Tensor& a, const Tensor& b);
Tensor eq(const Tensor& a, const Scalar& b);
Tensor fmin(const Tensor& a, const Tensor& b);
Tensor fmax(const Tensor& a, const Tensor& b);
Tensor maximum(const Tensor& a, const Tensor& b);
Tensor mm(const Tensor& a, const Tensor& b);
Tensor matmul(const Tensor& a, const Tensor& b);
Tensor index_select(const Tensor& x, std::int64_t dimension, const Tensor& indices);
Tensor constant_pad_nd(const Tensor& x, IntArrayRef pad, const Scalar& value = 0);
Tensor nan_to_num(const Tensor& x, std::optional<double> nan, std::optional<double> posinf,
                  std::optional<double> neginf);

// Calls body(first, last) for parts of [begin, end) on PyTorch's threads. Rethrows the first
// exception after all parts have ended.
void parallel_for(std::int64_t begin, std::int64_t end, std::int64_t grain_size,
                  const std::function<void(std::int64_t, std::int64_t)>& body);

// Returns the combination of body(first, last, identity) over all parts; the order of the parts is
// not determined.
template <typename T, typename Body, typename Combine>
T parallel_reduce(std::int64_t begin, std::int64_t end, std::int64_t grain_size, T identity,
                  const Body& body, const Combine& combine) {
  std::mutex mutex;
  T result = identity;
  parallel_for(begin, end, grain_size, [&](std::int64_t first, std::int64_t last) {
    const T part = body(first, last, identity);
    const std::lock_guard lock(mutex);
    result = combine(result, part);
  });
  return result;
}

// Autograd records nothing while it lives.
class NoGradGuard {
 public:
  NoGradGuard();
  ~NoGradGuard();
  NoGradGuard(const NoGradGuard&) = delete;
  NoGradGuard& operator=(const NoGradGuard&) = delete;

 private:
  bool before_;
};

struct GradMode {
  static bool is_enabled();
  static void set_enabled(bool enabled);
};

struct WarningUtils {
  // torch.set_warn_always(True) is not visible on the stable ABI.
  static bool get_warnAlways() { return false; }
};

class AutoGradMode {
 public:
  explicit AutoGradMode(bool enabled) : before_(GradMode::is_enabled()) {
    GradMode::set_enabled(enabled);
  }
  ~AutoGradMode() { GradMode::set_enabled(before_); }
  AutoGradMode(const AutoGradMode&) = delete;
  AutoGradMode& operator=(const AutoGradMode&) = delete;

 private:
  bool before_;
};

}  // namespace telens::stable

namespace at {
using namespace telens::stable;
}
namespace c10 {
using namespace telens::stable;
}
