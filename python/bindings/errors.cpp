#include "python/bindings/errors.h"

#include <fmt/ranges.h>
#include <pybind11/pybind11.h>

#include <cstdlib>
#include <cstring>
#include <exception>
#include <regex>
#include <string>
#include <vector>

#include "core/base/error.h"
#include "hooks/debug.h"
#include "python/bindings/module.h"

namespace telens::python {

namespace py = pybind11;

namespace {

// The first argument of a call that no overload accepts. pybind11 first tries all overloads without
// conversions, then again with conversions; this type is loaded only then, so that an overload that
// requires a conversion is not preempted.
struct RejectedArgument {
  py::handle value;
};

}  // namespace

}  // namespace telens::python

template <>
struct pybind11::detail::type_caster<telens::python::RejectedArgument> {
  PYBIND11_TYPE_CASTER(telens::python::RejectedArgument, const_name("object"));

  bool load(handle source, bool convert) {
    value.value = source;
    return convert;
  }
};

namespace telens::python {

namespace {

// Owned by the module object, which lives as long as the interpreter.
PyObject* error_type = nullptr;
PyObject* usage_error_type = nullptr;
PyObject* shape_error_type = nullptr;
PyObject* config_error_type = nullptr;
PyObject* record_error_type = nullptr;
PyObject* run_stopped_type = nullptr;

PyObject* declare(py::module_& module, const char* name, const py::tuple& bases, const char* doc) {
  const std::string full_name = std::string("telens.") + name;
  py::object type = py::reinterpret_steal<py::object>(
      PyErr_NewExceptionWithDoc(full_name.c_str(), doc, bases.ptr(), nullptr));
  if (!type) {
    throw py::error_already_set();
  }
  module.attr(name) = type;
  return type.ptr();
}

// The message may quote a file and so contain bytes that are not UTF-8.
void set_message(PyObject* type, const char* message) {
  const auto size = static_cast<Py_ssize_t>(std::char_traits<char>::length(message));
  const auto text =
      py::reinterpret_steal<py::object>(PyUnicode_DecodeUTF8(message, size, "backslashreplace"));
  if (text) PyErr_SetObject(type, text.ptr());
}

// Sets `error` with its nested Python exception, if any, as __cause__.
void set_error(PyObject* type, const Error& error) {
  try {
    std::rethrow_if_nested(error);
  } catch (py::error_already_set& original) {
    original.restore();
    py::raise_from(type, error.what());
    return;
  } catch (...) {
    // A C++ exception: its message is part of the error's message.
  }
  set_message(type, error.what());
}

// Restores the Python exception that ends the program.
void set_original(const Interruption& interruption) {
  try {
    std::rethrow_if_nested(interruption);
  } catch (py::error_already_set& original) {
    original.restore();
    return;
  } catch (...) {
    // A C++ exception.
  }
  PyErr_SetString(PyExc_KeyboardInterrupt, interruption.what());
}

}  // namespace

// The most derived type first.
void translate_error(std::exception_ptr thrown) {
  try {
    std::rethrow_exception(thrown);
  } catch (const ConfigError& error) {
    set_error(config_error_type, error);
  } catch (const ShapeError& error) {
    set_error(shape_error_type, error);
  } catch (const UsageError& error) {
    set_error(usage_error_type, error);
  } catch (const RecordError& error) {
    set_error(record_error_type, error);
  } catch (const debug::RunStopped& error) {
    set_error(run_stopped_type, error);
  } catch (const Error& error) {
    set_error(error_type, error);
  } catch (const Interruption& interruption) {
    set_original(interruption);
  }
}

namespace {

// Public names of functions that Python exports under another name.
std::string public_name(const std::string& name) {
  if (name == "enter_autocast") return "autocast";
  if (name == "rotary_angles") return "RotaryPositionEmbedding";
  if (name == "ModuleAdapter.set_debug_name") return "set_debug_name";
  return name;
}

// Returns the parameters of a pybind11 docstring "name(a: int, b: str) -> None" without the modules
// of their types.
std::string parameters_of(const std::string& doc) {
  const std::string signature = doc.substr(0, doc.find('\n'));
  const std::size_t begin = signature.find('(') + 1;
  const std::size_t end = signature.rfind(") -> ");
  static const std::regex modules(R"((telens\._C|collections\.abc|typing)\.)");
  return std::regex_replace(signature.substr(begin, end - begin), modules, "");
}

// The default of RejectedArgument, for calls without positional arguments.
py::handle no_argument() {
  static const py::handle object = py::module_::import("builtins").attr("object")().release();
  return object;
}

// Returns the name of a value's type without its module.
std::string name_of_type(py::handle value) {
  const std::string name = Py_TYPE(value.ptr())->tp_name;
  return name.substr(name.rfind('.') + 1);
}

[[noreturn]] void reject_arguments(const std::string& title, const std::string& parameters,
                                   RejectedArgument first, const py::args& others,
                                   const py::kwargs& keywords) {
  std::vector<std::string> given;
  if (!first.value.is(no_argument())) given.push_back(name_of_type(first.value));
  for (const py::handle value : others) given.push_back(name_of_type(value));
  for (const auto& [name, value] : keywords) {
    given.push_back(fmt::format("{}: {}", name.cast<std::string>(), name_of_type(value)));
  }
  raise<UsageError>("{}: takes ({}), not ({})", public_name(title), parameters,
                    fmt::join(given, ", "));
}

// Adds a last overload to `function` that raises UsageError, and keeps the function's docstring.
void add_usage_error(const py::handle& owner, const py::handle& function, const std::string& title,
                     bool is_method) {
  const auto name = function.attr("__name__").cast<std::string>();
  const py::object documentation = function.attr("__doc__");
  if (documentation.is_none()) return;  // pybind11's own _pybind11_conduit_v1_
  const auto doc = documentation.cast<std::string>();
  const auto first = py::arg_v("first", py::reinterpret_borrow<py::object>(no_argument()), "...");
  const auto reject = [title, parameters = parameters_of(doc)](RejectedArgument first,
                                                               const py::args& others,
                                                               const py::kwargs& keywords) {
    reject_arguments(title, parameters, first, others, keywords);
  };
  if (is_method) {
    const auto reject_of = [reject](const py::handle&, RejectedArgument first,
                                    const py::args& others, const py::kwargs& keywords) {
      reject(first, others, keywords);
    };
    py::cpp_function(reject_of, py::name(name.c_str()), py::is_method(owner), py::sibling(function),
                     first, py::pos_only());
  } else {
    py::cpp_function(reject, py::name(name.c_str()), py::scope(owner), py::sibling(function), first,
                     py::pos_only());
  }
  // pybind11 has replaced the docstring, which it allocates with strdup(), by a list of overloads.
  const char*& text = reinterpret_cast<PyCFunctionObject*>(function.ptr())->m_ml->ml_doc;
  std::free(const_cast<char*>(text));
  text = strdup(doc.c_str());
}

void add_usage_errors_to_methods(const py::handle& type) {
  const auto type_name = type.attr("__name__").cast<std::string>();
  for (const auto& [key, value] : py::dict(type.attr("__dict__"))) {
    if (!PyInstanceMethod_Check(value.ptr())) continue;
    const auto name = key.cast<std::string>();
    const bool is_call = name == "__call__";
    if (!is_call && name.starts_with("__")) continue;
    add_usage_error(type, PyInstanceMethod_GET_FUNCTION(value.ptr()),
                    is_call ? type_name : fmt::format("{}.{}", type_name, name), true);
  }
}

}  // namespace

void bind_errors(py::module_& module) {
  error_type = declare(module, "Error", py::make_tuple(py::handle(PyExc_RuntimeError)),
                       "Base class of the errors that TELens raises.");
  usage_error_type = declare(module, "UsageError",
                             py::make_tuple(py::handle(error_type), py::handle(PyExc_ValueError)),
                             "A wrong argument or call.");
  const py::tuple usage = py::make_tuple(py::handle(usage_error_type));
  shape_error_type =
      declare(module, "ShapeError", usage,
              "A tensor with a shape, dtype or device that an operation does not accept.");
  config_error_type =
      declare(module, "ConfigError", usage,
              "One or more mistakes in a debug configuration, each with file, line and column.");
  record_error_type = declare(module, "RecordError", py::make_tuple(py::handle(error_type)),
                              "A run file that cannot be written or read.");
  run_stopped_type =
      declare(module, "RunStopped", py::make_tuple(py::handle(error_type)),
              "Raised by debug.step() if the configuration requires the run to stop. "
              "All records are in the run file by then.");
  py::register_exception_translator(&translate_error);
}

void raise_usage_errors(py::module_& module) {
  const py::object debug = module.attr("debug");
  for (const py::handle owner : {py::handle(module), py::handle(debug)}) {
    const std::string prefix = owner.is(debug) ? "debug." : "";
    for (const auto& [name, value] : py::dict(owner.attr("__dict__"))) {
      if (PyCFunction_Check(value.ptr())) {
        add_usage_error(owner, value, prefix + name.cast<std::string>(), false);
      }
    }
  }
  for (const auto& [name, value] : py::dict(module.attr("__dict__"))) {
    // Enumerations have no arguments to convert. Exceptions are Python classes.
    const bool has_methods = PyType_Check(value.ptr()) && !PyExceptionClass_Check(value.ptr()) &&
                             !py::hasattr(value, "__members__");
    if (has_methods) add_usage_errors_to_methods(value);
  }
}

py::handle config_error() { return config_error_type; }

}  // namespace telens::python
