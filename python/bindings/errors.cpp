#include "python/bindings/errors.h"

#include <pybind11/pybind11.h>
#include <torch/csrc/Exceptions.h>

#include <exception>
#include <string>

#include "core/base/error.h"
#include "core/base/interruption.h"
#include "core/modules/shared/backward_errors.h"
#include "hooks/debug.h"
#include "python/bindings/gil.h"
#include "python/bindings/module.h"

namespace telens::python {

namespace py = pybind11;

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

// Its message may quote a file, and so hold bytes that are no UTF-8.
void set_message(PyObject* type, const char* message) {
  const auto size = static_cast<Py_ssize_t>(std::char_traits<char>::length(message));
  const auto text =
      py::reinterpret_steal<py::object>(PyUnicode_DecodeUTF8(message, size, "backslashreplace"));
  if (text) PyErr_SetObject(type, text.ptr());
}

// With the exception of Python that the error came of, if it did, as its __cause__.
void set_error(PyObject* type, const Error& error) {
  try {
    std::rethrow_if_nested(error);
  } catch (py::error_already_set& original) {
    original.restore();
    py::raise_from(type, error.what());
    return;
  } catch (...) {
    // One of C++, whose message stands in the error's own.
  }
  set_message(type, error.what());
}

// The exception of Python that ends the program.
void set_original(const Interruption& interruption) {
  try {
    std::rethrow_if_nested(interruption);
  } catch (py::error_already_set& original) {
    original.restore();
    return;
  } catch (...) {
    // One of C++.
  }
  PyErr_SetString(PyExc_KeyboardInterrupt, interruption.what());
}

// The most derived type first.
void translate(std::exception_ptr thrown) {
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

// Called in a handler; what is not ours leaves the backward as it is.
void throw_out_of_backward() {
  try {
    throw;
  } catch (const Error&) {
  } catch (const Interruption&) {
  } catch (const py::error_already_set&) {
  } catch (...) {
    return;
  }
  const WithGil gil;
  set_python_error();
  // The one exception that autograd's engine takes to Python as it is, from any thread.
  python_error error;
  error.persist();
  throw python_error(error);
}

}  // namespace

void bind_errors(py::module_& module) {
  error_type = declare(module, "Error", py::make_tuple(py::handle(PyExc_RuntimeError)),
                       "Base of all errors of TELens.");
  usage_error_type = declare(module, "UsageError",
                             py::make_tuple(py::handle(error_type), py::handle(PyExc_ValueError)),
                             "A wrong argument or call.");
  const py::tuple usage = py::make_tuple(py::handle(usage_error_type));
  shape_error_type = declare(module, "ShapeError", usage,
                             "A tensor whose shape, dtype or device an operation cannot take.");
  config_error_type =
      declare(module, "ConfigError", usage,
              "One or more mistakes in a debug configuration, each with file, line and column.");
  record_error_type = declare(module, "RecordError", py::make_tuple(py::handle(error_type)),
                              "A run file that cannot be written or read.");
  run_stopped_type = declare(module, "RunStopped", py::make_tuple(py::handle(error_type)),
                             "Thrown by debug.step() where the configuration wants the run to be "
                             "stopped; everything is in the run file.");
  py::register_exception_translator(&translate);
  set_backward_error_translator(&throw_out_of_backward);
}

py::handle config_error() { return config_error_type; }

void set_python_error() noexcept {
  try {
    throw;
  } catch (py::error_already_set& error) {
    error.restore();
  } catch (const py::builtin_exception& error) {
    error.set_error();
  } catch (python_error& error) {
    error.restore();
  } catch (const Error&) {
    translate(std::current_exception());
  } catch (const Interruption&) {
    translate(std::current_exception());
  } catch (...) {
    torch::translate_exception_to_python(std::current_exception());
  }
}

}  // namespace telens::python
