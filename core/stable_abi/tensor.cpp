#include "core/stable_abi/tensor.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <torch/csrc/inductor/aoti_torch/c/shim.h>
#include <torch/csrc/inductor/aoti_torch/generated/c_shim_aten.h>
#include <torch/csrc/stable/library.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <exception>
#include <mutex>
#include <numeric>

#include "core/base/tensor_handle.h"

namespace telens::stable {

std::string Device::str() const { return DeviceId{static_cast<std::int8_t>(type_), index_}.str(); }

std::string str(IntArrayRef sizes) { return fmt::format("[{}]", fmt::join(sizes, ", ")); }

namespace {

using torch::headeronly::IntHeaderOnlyArrayRef;

void check(AOTITorchError code, const char* function) {
  if (code != AOTI_TORCH_SUCCESS) {
    throw Error(fmt::format("{} failed; PyTorch has printed the reason to stderr", function));
  }
}

// ---- calls of operators by name

template <typename T>
StableIValue to_value(const T& value) {
  return torch::stable::detail::from(value);
}
StableIValue to_value(const Tensor& tensor) { return torch::stable::detail::from(tensor.stable()); }
StableIValue to_value(const IntArrayRef& values) {
  return torch::stable::detail::from(IntHeaderOnlyArrayRef(values.data(), values.size()));
}
StableIValue to_value(const TensorList& tensors) {
  std::vector<torch::stable::Tensor> list;
  list.reserve(tensors.size());
  for (const Tensor& each : tensors) list.push_back(each.stable());
  return torch::stable::detail::from(list);
}
StableIValue to_value(const std::optional<Device>& device) {
  if (!device) return torch::stable::detail::from(std::nullopt);
  return torch::stable::detail::from(
      std::optional(torch::stable::Device(device->type(), device->index())));
}

// Runs an operator of aten with all of its arguments, defaults included. The results replace the
// arguments in the returned stack.
template <typename... Arguments>
std::array<StableIValue, std::max<std::size_t>(sizeof...(Arguments), 2)> run(
    const char* name, const char* overload, const Arguments&... arguments) {
  std::array<StableIValue, std::max<std::size_t>(sizeof...(Arguments), 2)> stack{
      to_value(arguments)...};
  check(torch_call_dispatcher(name, overload, stack.data(), TORCH_ABI_VERSION), name);
  return stack;
}

Tensor to_tensor(StableIValue value) {
  return Tensor(torch::stable::detail::to<torch::stable::Tensor>(value));
}

template <typename... Arguments>
Tensor call(const char* name, const char* overload, const Arguments&... arguments) {
  return to_tensor(run(name, overload, arguments...)[0]);
}

std::vector<Tensor> to_tensors(StableIValue value) {
  std::vector<Tensor> tensors;
  for (torch::stable::Tensor& each :
       torch::stable::detail::to<std::vector<torch::stable::Tensor>>(value)) {
    tensors.emplace_back(std::move(each));
  }
  return tensors;
}

// ---- numbers as tensors

Tensor to_tensor(const Scalar& value, ScalarType dtype) {
  AtenTensorHandle made = nullptr;
  const bool is_floating = isFloatingType(dtype);
  check(is_floating ? aoti_torch_scalar_to_tensor_float64(value.value, &made)
                    : aoti_torch_scalar_to_tensor_int64(value.integer, &made),
        "scalar_to_tensor");
  return Tensor::steal(made).to(dtype);
}

Tensor like(const Tensor& x, const Scalar& value) { return to_tensor(value, x.scalar_type()); }

// Pads the sizes to those that both broadcast to.
std::vector<std::int64_t> broadcast_sizes(const Tensor& a, const Tensor& b) {
  const IntArrayRef left = a.sizes();
  const IntArrayRef right = b.sizes();
  std::vector<std::int64_t> sizes(std::max(left.size(), right.size()), 1);
  for (const IntArrayRef each : {left, right}) {
    const std::size_t skipped = sizes.size() - each.size();
    for (std::size_t i = 0; i < each.size(); ++i) {
      if (each[i] != 1) sizes[skipped + i] = each[i];
    }
  }
  return sizes;
}

// aten::add has a number as its third argument, which the stable ABI cannot pass. The function for
// subtract() passes a floating-point one, which operators reject for integers.
Tensor add_integers(const Tensor& a, const Tensor& b) {
  const std::vector<std::int64_t> sizes = broadcast_sizes(a, b);
  const Tensor both = stack({a.expand(sizes), b.expand(sizes)});
  const std::int64_t first = 0;
  return call("aten::sum", "dim_IntList", both, std::optional(IntHeaderOnlyArrayRef(&first, 1)),
              false, std::optional(a.scalar_type()));
}

Tensor subtract(const Tensor& a, const Tensor& b, double alpha) {
  AtenTensorHandle made = nullptr;
  check(aoti_torch_aten_subtract_Tensor(a.handle(), b.handle(), alpha, &made), "aten::subtract");
  return Tensor::steal(made);
}

bool is_floating(const Tensor& a, const Tensor& b) {
  return isFloatingType(a.scalar_type()) || isFloatingType(b.scalar_type());
}

}  // namespace

bool isFloatingType(ScalarType dtype) {
  return dtype == kDouble || dtype == kFloat || dtype == kHalf || dtype == kBFloat16 ||
         dtype == ScalarType::Float8_e4m3fn || dtype == ScalarType::Float8_e5m2;
}

// ---- metadata

IntArrayRef Tensor::sizes() const {
  std::int64_t* data = nullptr;
  check(aoti_torch_get_sizes(handle(), &data), "sizes");
  return IntArrayRef(std::span<const std::int64_t>(data, static_cast<std::size_t>(dim())));
}

IntArrayRef Tensor::strides() const {
  std::int64_t* data = nullptr;
  check(aoti_torch_get_strides(handle(), &data), "strides");
  return IntArrayRef(std::span<const std::int64_t>(data, static_cast<std::size_t>(dim())));
}

std::int64_t Tensor::dim() const { return tensor_->dim(); }

std::int64_t Tensor::size(std::int64_t dimension) const {
  const IntArrayRef all = sizes();
  const std::int64_t index =
      dimension < 0 ? dimension + static_cast<std::int64_t>(all.size()) : dimension;
  if (index < 0 || index >= static_cast<std::int64_t>(all.size())) {
    throw Error(fmt::format("dimension {} of a tensor of {}", dimension, all.size()));
  }
  return all[static_cast<std::size_t>(index)];
}

std::int64_t Tensor::stride(std::int64_t dimension) const {
  const IntArrayRef all = strides();
  return all[static_cast<std::size_t>(
      dimension < 0 ? dimension + static_cast<std::int64_t>(all.size()) : dimension)];
}

std::int64_t Tensor::numel() const { return tensor_->numel(); }
ScalarType Tensor::scalar_type() const { return tensor_->scalar_type(); }

Device Tensor::device() const {
  const torch::stable::Device device = tensor_->device();
  return {device.type(), static_cast<DeviceIndex>(device.index())};
}

bool Tensor::is_contiguous() const { return tensor_->is_contiguous(); }

bool Tensor::is_strided() const {
  std::int32_t layout = 0;
  check(aoti_torch_get_layout(handle(), &layout), "layout");
  return layout == aoti_torch_layout_strided();
}

bool Tensor::is_non_overlapping_and_dense() const {
  const IntArrayRef all_sizes = sizes();
  const IntArrayRef all_strides = strides();
  std::vector<std::size_t> order(all_sizes.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::erase_if(order, [&](std::size_t i) { return all_sizes[i] == 1; });
  std::ranges::sort(order, {}, [&](std::size_t i) { return all_strides[i]; });
  std::int64_t expected = 1;
  for (const std::size_t i : order) {
    if (all_sizes[i] == 0) return true;
    if (all_strides[i] != expected) return false;
    expected *= all_sizes[i];
  }
  return true;
}

bool Tensor::is_alias_of(const Tensor& other) const {
  const auto get_start = [](const Tensor& x) {
    return static_cast<const std::byte*>(x.const_data_ptr()) -
           x.stable().storage_offset() * x.element_size();
  };
  return numel() > 0 && other.numel() > 0 && get_start(*this) == get_start(other);
}

bool Tensor::is_same(const Tensor& other) const {
  if (!defined() || !other.defined()) return defined() == other.defined();
  return const_data_ptr() == other.const_data_ptr() && scalar_type() == other.scalar_type() &&
         sizes() == other.sizes() && strides() == other.strides();
}

std::int64_t Tensor::_version() const {
  return torch::stable::detail::to<std::int64_t>(run("aten::_version", "", *this)[0]);
}

bool Tensor::is_inference() const {
  return torch::stable::detail::to<bool>(run("aten::is_inference", "", *this)[0]);
}

const void* Tensor::const_data_ptr() const { return tensor_->const_data_ptr(); }
void* Tensor::mutable_data_ptr() const { return tensor_->mutable_data_ptr(); }

void Tensor::check_dtype(int number) const {
  const auto expected = static_cast<ScalarType>(number);
  if (scalar_type() != expected) {
    throw Error(fmt::format("expected scalar type {} but found {}", c10::toString(expected),
                            c10::toString(scalar_type())));
  }
}

// ---- views and copies

Tensor Tensor::contiguous() const {
  if (is_contiguous()) return *this;
  return call("aten::contiguous", "", *this, torch::headeronly::MemoryFormat::Contiguous);
}
Tensor Tensor::detach() const { return call("aten::detach", "", *this); }
Tensor Tensor::clone() const {
  return call("aten::clone", "", *this, std::optional<torch::headeronly::MemoryFormat>());
}
Tensor Tensor::to(ScalarType dtype) const {
  if (scalar_type() == dtype) return *this;
  return to(options().dtype(dtype));
}
Tensor Tensor::to(const Device& target, bool non_blocking) const {
  if (device() == target || (target.is_cpu() && is_cpu())) return *this;
  return to(options().device(target), non_blocking);
}
Tensor Tensor::to(const TensorOptions& options, bool non_blocking, bool copy) const {
  return call("aten::to", "dtype_layout", *this, std::optional(options.dtype()),
              std::optional<torch::headeronly::Layout>(), std::optional(options.device()),
              std::optional<bool>(), non_blocking, copy,
              std::optional<torch::headeronly::MemoryFormat>());
}
Tensor Tensor::view(IntArrayRef sizes) const { return call("aten::view", "", *this, sizes); }
Tensor Tensor::view(ScalarType dtype) const { return call("aten::view", "dtype", *this, dtype); }
Tensor Tensor::reshape(IntArrayRef sizes) const { return call("aten::reshape", "", *this, sizes); }
Tensor Tensor::narrow(std::int64_t dimension, std::int64_t start, std::int64_t length) const {
  return call("aten::narrow", "", *this, dimension, start, length);
}
Tensor Tensor::slice(std::int64_t dimension, std::int64_t start,
                     std::optional<std::int64_t> end) const {
  return call("aten::slice", "Tensor", *this, dimension, std::optional(start), end,
              std::int64_t{1});
}
Tensor Tensor::select(std::int64_t dimension, std::int64_t index) const {
  return call("aten::select", "int", *this, dimension, index);
}
Tensor Tensor::transpose(std::int64_t first, std::int64_t second) const {
  return call("aten::transpose", "int", *this, first, second);
}
Tensor Tensor::expand(IntArrayRef sizes) const {
  return call("aten::expand", "", *this, sizes, false);
}
Tensor Tensor::unsqueeze(std::int64_t dimension) const {
  return call("aten::unsqueeze", "", *this, dimension);
}
Tensor Tensor::repeat(IntArrayRef times) const { return call("aten::repeat", "", *this, times); }
Tensor Tensor::repeat_interleave(std::int64_t times, std::int64_t dimension) const {
  return call("aten::repeat_interleave", "self_int", *this, times, std::optional(dimension),
              std::optional<std::int64_t>());
}
std::vector<Tensor> Tensor::unbind(std::int64_t dimension) const {
  return to_tensors(run("aten::unbind", "int", *this, dimension)[0]);
}
std::vector<Tensor> Tensor::split(std::int64_t size, std::int64_t dimension) const {
  return to_tensors(run("aten::split", "Tensor", *this, size, dimension)[0]);
}
Tensor Tensor::take(const Tensor& indices) const { return call("aten::take", "", *this, indices); }
Tensor Tensor::masked_fill(const Tensor& mask, const Scalar& value) const {
  return call("aten::masked_fill", "Tensor", *this, mask, like(*this, value));
}

// ---- in place

const Tensor& Tensor::copy_(const Tensor& source, bool non_blocking) const {
  call("aten::copy_", "", *this, source, non_blocking);
  return *this;
}
const Tensor& Tensor::fill_(const Scalar& value) const {
  call("aten::fill_", "Tensor", *this, like(*this, value));
  return *this;
}
const Tensor& Tensor::zero_() const {
  call("aten::zero_", "", *this);
  return *this;
}
const Tensor& Tensor::add_(const Tensor& other) const { return copy_(*this + other); }
const Tensor& Tensor::mul_(const Tensor& other) const {
  call("aten::mul_", "Tensor", *this, other);
  return *this;
}
const Tensor& Tensor::abs_() const {
  call("aten::abs_", "", *this);
  return *this;
}
const Tensor& Tensor::random_() const {
  call("aten::random_", "", *this, std::nullopt);
  return *this;
}
const Tensor& Tensor::clamp_min_(const Scalar& least) const {
  call("aten::clamp_min_", "Tensor", *this, like(*this, least));
  return *this;
}
const Tensor& Tensor::masked_fill_(const Tensor& mask, const Scalar& value) const {
  call("aten::masked_fill_", "Tensor", *this, mask, like(*this, value));
  return *this;
}
const Tensor& Tensor::index_copy_(std::int64_t dimension, const Tensor& indices,
                                  const Tensor& source) const {
  call("aten::index_copy_", "", *this, dimension, indices, source);
  return *this;
}

// ---- elementwise

Tensor Tensor::abs() const { return call("aten::abs", "", *this); }
Tensor Tensor::exp() const { return call("aten::exp", "", *this); }
Tensor Tensor::log() const { return call("aten::log", "", *this); }
Tensor Tensor::reciprocal() const { return call("aten::reciprocal", "", *this); }
Tensor Tensor::isfinite() const { return call("aten::isfinite", "", *this); }
Tensor Tensor::isinf() const { return call("aten::isinf", "", *this); }
Tensor Tensor::isnan() const { return call("aten::isnan", "", *this); }
Tensor Tensor::clamp_min(const Scalar& least) const {
  return call("aten::clamp_min", "Tensor", *this, like(*this, least));
}
Tensor Tensor::logical_not() const { return call("aten::logical_not", "", *this); }
Tensor Tensor::logical_and(const Tensor& other) const {
  return call("aten::logical_and", "", *this, other);
}
Tensor Tensor::logical_or(const Tensor& other) const {
  return call("aten::logical_or", "", *this, other);
}
Tensor Tensor::eq(const Tensor& other) const { return call("aten::eq", "Tensor", *this, other); }
Tensor Tensor::ne(const Scalar& value) const { return *this != value; }
Tensor Tensor::mul(const Tensor& other) const { return *this * other; }
Tensor Tensor::mul(const Scalar& factor) const { return *this * factor; }
Tensor Tensor::bitwise_and(const Scalar& mask) const {
  return call("aten::bitwise_and", "Tensor", *this, like(*this, mask));
}
Tensor Tensor::bitwise_or(const Tensor& other) const {
  return call("aten::bitwise_or", "Tensor", *this, other);
}
Tensor Tensor::bitwise_or(const Scalar& mask) const { return bitwise_or(like(*this, mask)); }
Tensor Tensor::bitwise_xor(const Tensor& other) const {
  return call("aten::bitwise_xor", "Tensor", *this, other);
}
Tensor Tensor::bitwise_right_shift(const Scalar& bits) const {
  return call("aten::bitwise_right_shift", "Tensor", *this, like(*this, bits));
}

Tensor operator+(const Tensor& a, const Tensor& b) {
  return is_floating(a, b) ? subtract(a, b, -1) : add_integers(a, b);
}
Tensor operator-(const Tensor& a, const Tensor& b) {
  return is_floating(a, b) ? subtract(a, b, 1) : add_integers(a, b * -1);
}
Tensor operator*(const Tensor& a, const Tensor& b) { return call("aten::mul", "Tensor", a, b); }
Tensor operator/(const Tensor& a, const Tensor& b) { return call("aten::div", "Tensor", a, b); }
Tensor operator+(const Tensor& a, const Scalar& b) { return a + like(a, b); }
Tensor operator*(const Tensor& a, const Scalar& b) { return a * like(a, b); }
Tensor operator==(const Tensor& a, const Tensor& b) { return a.eq(b); }
Tensor operator<=(const Tensor& a, const Tensor& b) { return call("aten::le", "Tensor", a, b); }
Tensor operator==(const Tensor& a, const Scalar& b) { return a.eq(like(a, b)); }
Tensor operator!=(const Tensor& a, const Scalar& b) {
  return call("aten::ne", "Tensor", a, like(a, b));
}
Tensor operator<(const Tensor& a, const Scalar& b) {
  return call("aten::lt", "Tensor", a, like(a, b));
}
Tensor operator>(const Tensor& a, const Scalar& b) {
  return call("aten::gt", "Tensor", a, like(a, b));
}

// ---- reductions

Tensor Tensor::sum() const { return call("aten::sum", "", *this, std::optional<ScalarType>()); }
Tensor Tensor::sum(std::int64_t dimension) const {
  return call("aten::sum", "dim_IntList", *this,
              std::optional(IntHeaderOnlyArrayRef(&dimension, 1)), false,
              std::optional<ScalarType>());
}
Tensor Tensor::any() const { return call("aten::any", "", *this); }
Tensor Tensor::amax(IntArrayRef dimensions) const {
  return call("aten::amax", "", *this, dimensions, false);
}
Tensor Tensor::amin() const { return call("aten::amin", "", *this, IntArrayRef(), false); }
Tensor Tensor::argmax(std::int64_t dimension) const {
  return call("aten::argmax", "", *this, std::optional(dimension), false);
}
std::tuple<Tensor, Tensor> Tensor::max(std::int64_t dimension) const {
  const auto results = run("aten::max", "dim", *this, dimension, false);
  return {to_tensor(results[0]), to_tensor(results[1])};
}

// ---- new tensors

Tensor empty(IntArrayRef sizes, const TensorOptions& options) {
  return call("aten::empty", "memory_format", sizes, std::optional(options.dtype()),
              std::optional<torch::headeronly::Layout>(), std::optional(options.device()),
              std::optional(options.pinned_memory()),
              std::optional<torch::headeronly::MemoryFormat>());
}
Tensor empty_like(const Tensor& like) { return empty(like.sizes(), like.options()); }
Tensor empty_like(const Tensor& like, const TensorOptions& options) {
  return empty(like.sizes(), options);
}
Tensor empty_strided(IntArrayRef sizes, IntArrayRef strides, const TensorOptions& options) {
  return call("aten::empty_strided", "", sizes, strides, std::optional(options.dtype()),
              std::optional<torch::headeronly::Layout>(), std::optional(options.device()),
              std::optional(options.pinned_memory()));
}
Tensor zeros(IntArrayRef sizes, const TensorOptions& options) {
  return empty(sizes, options).zero_();
}
Tensor zeros_like(const Tensor& like) { return zeros(like.sizes(), like.options()); }
Tensor ones(IntArrayRef sizes, const TensorOptions& options) { return full(sizes, 1, options); }
Tensor full(IntArrayRef sizes, const Scalar& value, const TensorOptions& options) {
  return empty(sizes, options).fill_(value);
}
Tensor full_like(const Tensor& like, const Scalar& value) {
  return full(like.sizes(), value, like.options());
}
Tensor scalar_tensor(const Scalar& value, const TensorOptions& options) {
  return full({}, value, options);
}
Tensor tensor(const std::vector<std::int64_t>& values, const TensorOptions& options) {
  const Tensor host = empty({static_cast<std::int64_t>(values.size())}, kLong);
  std::ranges::copy(values, host.mutable_data_ptr<std::int64_t>());
  return host.to(options);
}
Tensor arange(std::int64_t end, const TensorOptions& options) { return arange(0, end, options); }
Tensor arange(std::int64_t start, std::int64_t end, const TensorOptions& options) {
  std::vector<std::int64_t> values(
      static_cast<std::size_t>(std::max<std::int64_t>(end - start, 0)));
  std::iota(values.begin(), values.end(), start);
  return tensor(values, options);
}
Tensor from_blob(const void* data, IntArrayRef sizes, IntArrayRef strides,
                 std::shared_ptr<const void> owner, const TensorOptions& options) {
  AtenTensorHandle made = nullptr;
  const auto number = [](auto value) {
    return torch::stable::detail::to<std::int32_t>(torch::stable::detail::from(value));
  };
  check(aoti_torch_create_tensor_from_blob(
            const_cast<void*>(data), static_cast<std::int64_t>(sizes.size()), sizes.data(),
            strides.data(), 0, number(options.dtype()), number(options.device().type()),
            options.device().index(), &made),
        "from_blob");
  Tensor view = Tensor::steal(made);
  view.keep_alive(std::move(owner));
  return view;
}
Tensor from_blob(void* data, IntArrayRef sizes, const std::function<void(void*)>& release,
                 const TensorOptions& options) {
  const Tensor copy = empty(sizes, options);
  if (copy.numel() > 0) std::memcpy(copy.mutable_data_ptr(), data, copy.nbytes());
  release(data);
  return copy;
}

Tensor cat(TensorList tensors, std::int64_t dimension) {
  return call("aten::cat", "", tensors, dimension);
}
Tensor stack(TensorList tensors, std::int64_t dimension) {
  return call("aten::stack", "", tensors, dimension);
}
Tensor where(const Tensor& condition, const Tensor& a, const Tensor& b) {
  return call("aten::where", "self", condition, a, b);
}
Tensor where(const Tensor& condition, const Tensor& a, const Scalar& b) {
  return where(condition, a, like(a, b));
}
Tensor eq(const Tensor& a, const Tensor& b) { return a.eq(b); }
Tensor eq(const Tensor& a, const Scalar& b) { return a == b; }
Tensor fmin(const Tensor& a, const Tensor& b) { return call("aten::fmin", "", a, b); }
Tensor fmax(const Tensor& a, const Tensor& b) { return call("aten::fmax", "", a, b); }
Tensor maximum(const Tensor& a, const Tensor& b) { return call("aten::maximum", "", a, b); }
Tensor mm(const Tensor& a, const Tensor& b) { return call("aten::mm", "", a, b); }
Tensor matmul(const Tensor& a, const Tensor& b) { return call("aten::matmul", "", a, b); }
Tensor index_select(const Tensor& x, std::int64_t dimension, const Tensor& indices) {
  return call("aten::index_select", "", x, dimension, indices);
}
Tensor constant_pad_nd(const Tensor& x, IntArrayRef pad, const Scalar& value) {
  AtenTensorHandle made = nullptr;
  double number = value.value;
  check(aoti_torch_aten_pad(x.handle(), pad.data(), static_cast<std::int64_t>(pad.size()),
                            "constant", &number, &made),
        "aten::pad");
  return Tensor::steal(made);
}
Tensor nan_to_num(const Tensor& x, std::optional<double> nan, std::optional<double> posinf,
                  std::optional<double> neginf) {
  return call("aten::nan_to_num", "", x, nan, posinf, neginf);
}

// ---- threads and modes

void parallel_for(std::int64_t begin, std::int64_t end, std::int64_t grain_size,
                  const std::function<void(std::int64_t, std::int64_t)>& body) {
  struct Job {
    const std::function<void(std::int64_t, std::int64_t)>& body;
    std::mutex mutex;
    std::exception_ptr error;
  } job{body, {}, {}};
  const auto run_part = [](std::int64_t first, std::int64_t last, void* context) {
    Job& shared = *static_cast<Job*>(context);
    try {
      shared.body(first, last);
    } catch (...) {
      const std::lock_guard lock(shared.mutex);
      if (!shared.error) shared.error = std::current_exception();
    }
  };
  check(torch_parallel_for(begin, end, grain_size, run_part, &job), "parallel_for");
  if (job.error) std::rethrow_exception(job.error);
}

bool GradMode::is_enabled() { return aoti_torch_grad_mode_is_enabled(); }
void GradMode::set_enabled(bool enabled) { aoti_torch_grad_mode_set_enabled(enabled); }

NoGradGuard::NoGradGuard() : before_(GradMode::is_enabled()) { GradMode::set_enabled(false); }
NoGradGuard::~NoGradGuard() { GradMode::set_enabled(before_); }

}  // namespace telens::stable
