// TORCH_LIBRARY_IMPL and find_operator() for libtelens_observe.so, which calls its own kernels
// directly: operators of the library `telens` are not registered with PyTorch's dispatcher.
#pragma once

#include <string>
#include <string_view>

#include "core/base/error.h"
#include "core/stable_abi/tensor.h"

namespace telens::ops {

// Kernels of one operator. `every_device` is used if `cpu` is nullptr.
struct Kernels {
  using Function = void (*)();

  Function cpu = nullptr;
  Function every_device = nullptr;
};

// Returns the entry of an operator such as "telens::statistics", which lives as long as the
// process.
Kernels& kernels_of(std::string_view name);

// Throws UsageError that names the operator.
[[noreturn]] void raise_no_kernel(const char* name);

template <typename Signature>
class Operator;

template <typename Result, typename... Arguments>
class Operator<Result(Arguments...)> {
 public:
  explicit Operator(const char* name) : name_(name), kernels_(kernels_of(name)) {}

  Result call(Arguments... arguments) const {
    const Kernels::Function found = kernels_.cpu ? kernels_.cpu : kernels_.every_device;
    if (found == nullptr) raise_no_kernel(name_);
    return reinterpret_cast<Result (*)(Arguments...)>(found)(std::forward<Arguments>(arguments)...);
  }

 private:
  const char* name_;
  Kernels& kernels_;
};

template <typename Signature>
Operator<Signature> find_operator(const char* name) {
  return Operator<Signature>(name);
}

// The argument of a TORCH_LIBRARY_IMPL block: registers kernels.
class KernelLibrary {
 public:
  enum class Key { CPU, CompositeExplicitAutograd, Meta };

  explicit KernelLibrary(Key key) : key_(key) {}

  template <typename Result, typename... Arguments>
  void impl(const char* name, Result (*kernel)(Arguments...)) {
    add(name, reinterpret_cast<Kernels::Function>(kernel));
  }

 private:
  void add(const char* name, Kernels::Function kernel);

  Key key_;
};

}  // namespace telens::ops

namespace torch {
using Library = telens::ops::KernelLibrary;
}

#define TORCH_FN(function) &function

#define TELENS_CONCATENATE_(a, b) a##b
#define TELENS_CONCATENATE(a, b) TELENS_CONCATENATE_(a, b)
#define TORCH_LIBRARY_IMPL(library, key, argument) \
  TELENS_LIBRARY_IMPL(key, argument, TELENS_CONCATENATE(kernels_, __COUNTER__))
#define TELENS_LIBRARY_IMPL(key, argument, id)                         \
  static void TELENS_CONCATENATE(add_, id)(torch::Library & argument); \
  static const bool id = [] {                                          \
    torch::Library library(torch::Library::Key::key);                  \
    TELENS_CONCATENATE(add_, id)(library);                             \
    return true;                                                       \
  }();                                                                 \
  static void TELENS_CONCATENATE(add_, id)(torch::Library & argument)
