#include "python/bindings/config_value.h"

#include <fmt/format.h>
#include <pybind11/stl.h>

#include <optional>
#include <string>
#include <vector>

#include "hooks/config/plan.h"
#include "hooks/feature_registry.h"
#include "python/bindings/module.h"

namespace telens::python {

namespace py = pybind11;

// ---- values

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

// ---- plans

namespace {

py::object text_or_none(const std::string& text) {
  return text.empty() ? py::object(py::none()) : py::object(py::str(text));
}

py::dict get_row(const config::PlanRow& row) {
  py::dict values;
  values["layer"] = row.layer;
  values["gemm"] = text_or_none(row.gemm());
  values["tensor"] = text_or_none(row.tensor());
  values["feature"] = config::qualified_name(*row.entry->description);
  values["section"] = row.entry->section;
  values["when"] = row.when();
  // A class that parses its own configuration lacks a selection: show the text of the file.
  values["parameters"] = to_python(row.selection ? row.selection->parameters : row.entry->config);
  return values;
}

py::dict compute_load(const config::Plan& plan) {
  const config::RecordLoad load = config::estimate_load(plan);
  py::dict values;
  values["average_records"] = load.average;
  values["first"] = load.first;
  values["last"] = load.last;
  values["most_records"] = load.most;
  values["busiest"] = load.busiest;
  values["bytes_per_record"] = config::kBytesPerRecord;
  values["not_counted"] = load.not_counted;
  values["waiting"] = load.waiting;
  values["text"] = load.text();
  return values;
}

// {rows, warnings, load} for telens.debug.planning.
py::dict plan(const std::string& config_file, const std::optional<std::string>& config_text,
              const std::vector<std::string>& layer_names, std::optional<std::int64_t> iteration) {
  const FeatureRegistry registry(default_parts().builtin);
  const config::Config loaded =
      config_text ? config::load_config_text(*config_text, "config", registry.descriptions())
                  : config::load_config_file(config_file, registry.descriptions());
  const config::Plan planned = config::make_plan(loaded, layer_names);
  py::list rows;
  for (const config::PlanRow& row : planned.rows) {
    if (!iteration || row.due(*iteration)) rows.append(get_row(row));
  }
  py::dict answer;
  answer["rows"] = rows;
  answer["warnings"] = planned.warnings;
  answer["load"] = compute_load(planned);
  return answer;
}

}  // namespace

void bind_plan(py::module_& parent) {
  py::module_ module = parent.attr("debug");
  module.def("plan", &plan, py::arg("config_file"), py::arg("config_text"), py::arg("layer_names"),
             py::arg("iteration"));
}

}  // namespace telens::python
