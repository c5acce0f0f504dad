#include "python/bindings/fields.h"

#include <fmt/ranges.h>

#include <string_view>

namespace telens::python {

void raise_unknown_argument(const std::string& owner, const std::string& given,
                            const std::vector<std::string>& names) {
  const auto matches =
      py::module_::import("difflib").attr("get_close_matches")(given, names, 1, 0.5);
  std::string hint;
  if (py::len(matches) != 0) {
    hint = fmt::format("; did you mean '{}'?", matches[py::int_(0)].cast<std::string>());
  } else {
    hint = fmt::format("; it has {}", fmt::join(names, ", "));
  }
  throw py::type_error(fmt::format("{}: unknown argument '{}'{}", owner, given, hint));
}

void raise_wrong_type(const char* name, const std::string& expected, py::handle given) {
  throw py::type_error(fmt::format("argument '{}' must be {}, not {}", name, expected,
                                   Py_TYPE(given.ptr())->tp_name));
}

void raise_too_many_positions(const std::string& owner, Py_ssize_t at_most, Py_ssize_t given,
                              const std::string& next) {
  throw py::type_error(fmt::format(
      "{}: takes at most {} arguments by position, got {}; give the others by name, {}=... first",
      owner, at_most, given, next));
}

bool is_bool(py::handle value) {
  // First, since a GroupedLinear passes a size per expert in every forward.
  if (PyLong_CheckExact(value.ptr()) || PyFloat_CheckExact(value.ptr())) return false;
  if (PyBool_Check(value.ptr())) return true;
  if (THPVariable_Check(value.ptr())) {
    return THPVariable_Unpack(value.ptr()).scalar_type() == at::kBool;
  }
  const std::string_view type = Py_TYPE(value.ptr())->tp_name;
  return type == "numpy.bool" || type == "numpy.bool_";
}

}  // namespace telens::python
