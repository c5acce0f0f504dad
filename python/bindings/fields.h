// Reading and writing the structs that describe themselves (Options and Inputs of the modules):
// their static describe(visitor) visits (name, pointer to member, doc) for every field, and
// visitor.nested(name, pointer to member, pointer to member of that, doc) for inner structs.
//
// An int64 field that is 0 at first, an empty list of sizes and a plain Tensor must be given; every
// other field has its initial value as its default.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>
#include <fmt/format.h>
#include <pybind11/functional.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>
#include <torch/csrc/autograd/python_variable.h>
#include <torch/csrc/utils/pybind.h>

#include <algorithm>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "core/modules/attention/attention_arguments.h"
#include "core/modules/linear/linear.h"
#include "python/bindings/distributed.h"

namespace telens::python {

namespace py = pybind11;

// Raises TypeError for an unknown argument `given` of `owner`; names the nearest known argument.
[[noreturn]] void raise_unknown_argument(const std::string& owner, const std::string& given,
                                         const std::vector<std::string>& names);
// Raises TypeError: an argument of the wrong type.
[[noreturn]] void raise_wrong_type(const char* name, const std::string& expected, py::handle given);

// Raises TypeError: more arguments by position than `at_most`; `next` is the first one too many.
[[noreturn]] void raise_too_many_positions(const std::string& owner, Py_ssize_t at_most,
                                           Py_ssize_t given, const std::string& next);
// Returns true for a bool of Python or NumPy, or a tensor of bools. They convert to numbers, but
// are not accepted as a size or a factor.
bool is_bool(py::handle value);

// Returns the Python name of a field's type for signatures and stubs.
template <typename T>
std::string python_type_name() {
  if constexpr (std::is_same_v<T, bool>) {
    return "bool";
  } else if constexpr (std::is_integral_v<T>) {
    return "int";
  } else if constexpr (std::is_floating_point_v<T>) {
    return "float";
  } else if constexpr (std::is_same_v<T, std::string>) {
    return "str";
  } else if constexpr (std::is_same_v<T, at::Tensor>) {
    return "torch.Tensor";
  } else if constexpr (std::is_same_v<T, at::ScalarType>) {
    return "torch.dtype";
  } else if constexpr (std::is_same_v<T, at::Device>) {
    return "torch.device | str";
  } else if constexpr (std::is_same_v<T, ProcessGroupPtr>) {
    return "torch.distributed.ProcessGroup | None";
  } else if constexpr (std::is_same_v<T, std::function<void(at::Tensor)>>) {
    return "Callable[[torch.Tensor], object] | None";
  } else if constexpr (std::is_same_v<T, ScoreCallback>) {
    return "Callable[..., torch.Tensor] | None";
  } else if constexpr (std::is_same_v<T, std::vector<std::int64_t>>) {
    return "int | Sequence[int]";
  } else if constexpr (std::is_same_v<T, std::vector<at::Tensor>>) {
    return "torch.Tensor | Sequence[torch.Tensor] | None";
  } else if constexpr (std::is_same_v<T, std::vector<ParameterPart>>) {
    return "Mapping[str, int] | Sequence[str] | None";
  } else if constexpr (std::is_same_v<T, std::map<std::string, double>>) {
    return "Mapping[str, float] | None";
  } else if constexpr (std::is_same_v<T, std::optional<std::vector<std::int64_t>>>) {
    return "Sequence[int] | None";  // a single number is not accepted as a list
  } else {
    static_assert(std::is_same_v<T, std::optional<typename T::value_type>>);
    return fmt::format("{} | None", python_type_name<typename T::value_type>());
  }
}

// Converts a field to Python. Empty strings and lists become None.
template <typename T>
py::object to_python(const T& field) {
  constexpr bool is_list = std::is_same_v<T, std::vector<at::Tensor>> ||
                           std::is_same_v<T, std::vector<ParameterPart>> ||
                           std::is_same_v<T, std::map<std::string, double>>;
  if constexpr (is_list || std::is_same_v<T, std::string>) {
    if (field.empty()) {
      return py::none();
    }
  }
  if constexpr (std::is_same_v<T, std::vector<ParameterPart>>) {
    py::dict parts;
    for (const ParameterPart& part : field) {
      parts[py::str(part.name)] = part.out_features;
    }
    return parts;
  } else if constexpr (std::is_same_v<T, ProcessGroupPtr>) {
    return from_process_group(field.get());
  } else {
    return py::cast(field);
  }
}

template <typename T>
bool must_be_given(const T& initial) {
  if constexpr (std::is_same_v<T, at::Tensor>) {
    return true;
  } else if constexpr (std::is_same_v<T, std::int64_t>) {
    return initial == 0;
  } else if constexpr (std::is_same_v<T, std::vector<std::int64_t>>) {
    return initial.empty();
  } else {
    return false;
  }
}

template <typename T>
constexpr bool kIsNumber =
    (std::is_integral_v<T> && !std::is_same_v<T, bool>) || std::is_floating_point_v<T>;
template <typename T>
constexpr bool kIsNumber<std::optional<T>> = kIsNumber<T>;

// value.cast<T>(), with a TypeError that names the argument.
template <typename T>
T cast_argument(const char* name, const std::string& expected, py::handle value) {
  if constexpr (kIsNumber<T>) {
    if (is_bool(value)) raise_wrong_type(name, expected, value);
  }
  try {
    return value.cast<T>();
  } catch (const py::cast_error&) {
    raise_wrong_type(name, expected, value);
  }
}

// A list of sizes, none of which is a bool.
template <typename T>
T cast_sizes(const char* name, py::handle value) {
  if (is_bool(value)) raise_wrong_type(name, python_type_name<T>(), value);
  if (PyList_Check(value.ptr()) || PyTuple_Check(value.ptr())) {
    for (const py::handle each : value) {
      if (is_bool(each)) raise_wrong_type(name, python_type_name<T>(), each);
    }
  }
  return cast_argument<T>(name, python_type_name<T>(), value);
}

template <typename T>
void read_field(const char* name, py::handle value, T& field) {
  const auto cast = [&]<typename Cast>(std::type_identity<Cast>, py::handle from) {
    return cast_argument<Cast>(name, python_type_name<T>(), from);
  };
  if constexpr (std::is_same_v<T, at::Tensor>) {
    if (!THPVariable_Check(value.ptr())) {
      raise_wrong_type(name, "torch.Tensor", value);
    }
    field = THPVariable_Unpack(value.ptr());
  } else if constexpr (std::is_same_v<T, std::optional<at::Device>>) {
    // torch.device takes strings and indices as well as devices.
    field.reset();
    if (!value.is_none()) {
      field = py::module_::import("torch").attr("device")(value).template cast<at::Device>();
    }
  } else if constexpr (std::is_same_v<T, ProcessGroupPtr>) {
    field = to_process_group(py::reinterpret_borrow<py::object>(value), name);
  } else if constexpr (std::is_same_v<T, std::vector<std::int64_t>>) {
    // A tensor of numbers is read, which waits for its device.
    const py::object numbers = THPVariable_Check(value.ptr())
                                   ? value.attr("tolist")()
                                   : py::reinterpret_borrow<py::object>(value);
    const bool one = PyLong_Check(numbers.ptr());
    field = cast_sizes<T>(name, one ? py::object(py::make_tuple(numbers)) : numbers);
  } else if constexpr (std::is_same_v<T, std::optional<std::vector<std::int64_t>>>) {
    field = cast_sizes<T>(name, value);
  } else if constexpr (std::is_same_v<T, std::vector<at::Tensor>>) {
    const bool one = THPVariable_Check(value.ptr());
    field = value.is_none()
                ? T()
                : cast(std::type_identity<T>{}, one ? py::object(py::make_tuple(value))
                                                    : py::reinterpret_borrow<py::object>(value));
  } else if constexpr (std::is_same_v<T, std::vector<ParameterPart>>) {
    field.clear();
    if (PyTuple_Check(value.ptr()) || PyList_Check(value.ptr())) {
      for (const auto& part : cast(std::type_identity<std::vector<std::string>>{}, value)) {
        field.push_back({part});
      }
    } else if (!value.is_none()) {
      for (const auto& [part, size] : cast(std::type_identity<py::dict>{}, value)) {
        const auto part_name = part.template cast<std::string>();
        const std::string of_part = fmt::format("{}['{}']", name, part_name);
        field.push_back({part_name, cast_argument<std::int64_t>(of_part.c_str(), "int", size)});
      }
    }
  } else if constexpr (std::is_same_v<T, std::map<std::string, double>>) {
    field = value.is_none() ? T() : cast(std::type_identity<T>{}, value);
    for (const auto& [key, number] : value.is_none() ? py::dict() : value.cast<py::dict>()) {
      const std::string of_key = fmt::format("{}['{}']", name, key.template cast<std::string>());
      if (is_bool(number)) raise_wrong_type(of_key.c_str(), "float", number);
    }
  } else if constexpr (std::is_same_v<T, std::string>) {
    field = value.is_none() ? std::string() : cast(std::type_identity<T>{}, value);
  } else {
    field = cast(std::type_identity<T>{}, value);
  }
}

// True if two fields hold the same value; tensors are compared by identity.
template <typename T>
bool same_value(const T& a, const T& b) {
  if constexpr (std::is_same_v<T, at::Tensor>) {
    return a.is_same(b);
  } else if constexpr (std::is_same_v<T, std::optional<at::Tensor>>) {
    return a.has_value() == b.has_value() && (!a || a->is_same(*b));
  } else if constexpr (std::is_same_v<T, std::function<void(at::Tensor)>> ||
                       std::is_same_v<T, ScoreCallback>) {
    return static_cast<bool>(a) == static_cast<bool>(b);
  } else if constexpr (std::is_same_v<T, std::vector<at::Tensor>>) {
    return std::equal(a.begin(), a.end(), b.begin(), b.end(),
                      [](const at::Tensor& x, const at::Tensor& y) { return x.is_same(y); });
  } else if constexpr (std::is_same_v<T, std::vector<ParameterPart>>) {
    return a.size() == b.size() && a.empty();
  } else {
    return a == b;
  }
}

// Calls function(name, field of object, same field of an object with initial values, doc).
template <typename Struct, typename Function>
struct FieldVisitor {
  Struct& object;
  const std::remove_const_t<Struct>& initial;
  Function& function;

  template <typename T, typename Owner>
  void operator()(const char* name, T Owner::*member, const char* doc) {
    function(name, object.*member, initial.*member, doc);
  }
  template <typename Inner, typename T, typename Owner, typename InnerOwner>
  void nested(const char* name, Inner Owner::*member, T InnerOwner::*field, const char* doc) {
    function(name, object.*member.*field, initial.*member.*field, doc);
  }
};

template <typename Struct, typename Function>
void for_each_field(Struct& object, Function function) {
  using Plain = std::remove_const_t<Struct>;
  static const Plain initial{};
  FieldVisitor<Struct, Function> visitor{object, initial, function};
  Plain::describe(visitor);
}

// The description of a field from which Python's signature, docstring and stub are created.
struct FieldInfo {
  std::string name;
  std::string type;
  py::object initial;  // the default; Ellipsis if the field is required
  std::string doc;
};

template <typename Struct>
std::vector<FieldInfo> describe_fields() {
  Struct object{};
  std::vector<FieldInfo> fields;
  for_each_field(object, [&](const char* name, auto& field, const auto&, const char* doc) {
    using T = std::remove_cvref_t<decltype(field)>;
    const py::object initial = must_be_given(field) ? py::object(py::ellipsis()) : to_python(field);
    std::string type = python_type_name<T>();
    if (std::is_same_v<T, std::string> && initial.is_none()) {
      type = fmt::format("{} | None", type);
    }
    fields.push_back({name, type, initial, doc});
  });
  return fields;
}

// Fills a struct from positional (a tuple) and keyword arguments (a dict or nullptr), in the order
// of describe(); those after the first `at_most` are keyword-only. Raises TypeError as a Python
// function would, with the nearest name for a misspelt one.
template <typename Struct>
Struct read_arguments(const char* owner, PyObject* args, PyObject* kwargs,
                      Py_ssize_t at_most = PY_SSIZE_T_MAX) {
  Struct object{};
  const Py_ssize_t positional = PyTuple_GET_SIZE(args);
  const Py_ssize_t keywords = kwargs == nullptr ? 0 : PyDict_GET_SIZE(kwargs);
  Py_ssize_t index = 0;
  Py_ssize_t keywords_read = 0;
  for_each_field(object, [&](const char* name, auto& field, const auto& initial, const char*) {
    PyObject* value = nullptr;
    if (keywords != 0) {
      value = PyDict_GetItemString(kwargs, name);
      keywords_read += value != nullptr;
    }
    if (index < positional) {
      if (index >= at_most) raise_too_many_positions(owner, at_most, positional, name);
      if (value != nullptr) {
        throw py::type_error(fmt::format("{}: got two values for argument '{}'", owner, name));
      }
      value = PyTuple_GET_ITEM(args, index);
    }
    ++index;
    if (value != nullptr) {
      read_field(name, value, field);
    } else if (must_be_given(initial)) {
      throw py::type_error(fmt::format("{}: argument '{}' is missing", owner, name));
    }
  });
  if (positional > index) {
    throw py::type_error(
        fmt::format("{}: takes at most {} arguments, got {}", owner, index, positional));
  }
  if (keywords_read != keywords) {
    std::vector<std::string> names;
    for_each_field(object, [&](const char* name, auto&&...) { names.emplace_back(name); });
    for (const auto& [key, value] : py::reinterpret_borrow<py::dict>(kwargs)) {
      const auto given = key.template cast<std::string>();
      if (std::find(names.begin(), names.end(), given) == names.end()) {
        raise_unknown_argument(owner, given, names);
      }
    }
  }
  return object;
}

// All fields as keyword arguments.
template <typename Struct>
py::dict write_fields(const Struct& object) {
  py::dict fields;
  for_each_field(object, [&](const char* name, const auto& field, const auto&, const char*) {
    fields[name] = to_python(field);
  });
  return fields;
}

// Returns the arguments for a Python forward: required fields by position, and optional fields by
// keyword if they are not at their defaults. A replacement with a plain forward(x) can then be
// called.
template <typename Struct>
std::pair<py::tuple, py::dict> write_arguments(const Struct& object) {
  py::list positional;
  py::dict keywords;
  for_each_field(object,
                 [&](const char* name, const auto& field, const auto& initial, const char*) {
                   if (must_be_given(initial)) {
                     positional.append(to_python(field));
                   } else if (!same_value(field, initial)) {
                     keywords[name] = to_python(field);
                   }
                 });
  return {py::tuple(positional), std::move(keywords)};
}

}  // namespace telens::python
