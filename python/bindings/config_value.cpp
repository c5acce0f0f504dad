#include "python/bindings/config_value.h"

#include <fmt/format.h>

#include <string>

namespace telens::python {

namespace py = pybind11;

py::object to_python(const config::Value& value) {
  if (value.is_null()) {
    return py::none();
  }
  if (value.is_bool()) {
    return py::bool_(value.as_bool());
  }
  if (value.is_integer()) {
    return py::int_(value.as_integer());
  }
  if (value.is_number()) {
    return py::float_(value.as_number());
  }
  if (value.is_string()) {
    return py::str(value.as_string());
  }
  if (value.is_list()) {
    py::list list;
    for (const config::Value& item : value.as_list()) {
      list.append(to_python(item));
    }
    return list;
  }
  py::dict map;
  for (const config::MapEntry& entry : value.as_map()) {
    map[py::str(entry.key)] = to_python(entry.value);
  }
  return map;
}

config::Value to_config_value(py::handle object) {
  if (object.is_none()) {
    return {};
  }
  if (py::isinstance<py::bool_>(object)) {
    return object.cast<bool>();
  }
  if (py::isinstance<py::int_>(object)) {
    return object.cast<std::int64_t>();
  }
  if (py::isinstance<py::float_>(object)) {
    return object.cast<double>();
  }
  if (py::isinstance<py::str>(object)) {
    return object.cast<std::string>();
  }
  if (py::isinstance<py::list>(object) || py::isinstance<py::tuple>(object)) {
    config::Value::List list;
    for (const py::handle item : object) {
      list.push_back(to_config_value(item));
    }
    return list;
  }
  if (!py::isinstance<py::dict>(object)) {
    throw py::type_error(fmt::format(
        "a debug configuration holds dicts, lists, strings, numbers, bools and None, not {}",
        Py_TYPE(object.ptr())->tp_name));
  }
  config::Value::Map map;
  for (const auto& [key, item] : py::reinterpret_borrow<py::dict>(object)) {
    if (!py::isinstance<py::str>(key)) {
      throw py::type_error(fmt::format("a debug configuration has strings as keys, not {}",
                                       py::repr(key).cast<std::string>()));
    }
    map.push_back({key.cast<std::string>(), to_config_value(item)});
  }
  return map;
}

}  // namespace telens::python
