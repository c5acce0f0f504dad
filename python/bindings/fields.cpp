#include "python/bindings/fields.h"

#include <fmt/ranges.h>

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
  throw py::type_error(fmt::format("{}: there is no argument '{}'{}", owner, given, hint));
}

void raise_wrong_type(const char* name, const std::string& expected, py::handle given) {
  throw py::type_error(fmt::format("argument '{}' must be {}, not {}", name, expected,
                                   Py_TYPE(given.ptr())->tp_name));
}

}  // namespace telens::python
