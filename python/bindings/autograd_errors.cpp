// Exceptions between C++ and functions of Python that are called without pybind11: autograd's
// engine, and CPython's own call protocol.
#include <pybind11/pybind11.h>
#include <torch/csrc/Exceptions.h>

#include <exception>

#include "core/base/error.h"
#include "core/modules/shared/autograd_utils.h"
#include "python/bindings/errors.h"
#include "python/bindings/gil.h"
#include "python/bindings/module.h"

namespace telens::python {

namespace py = pybind11;

namespace {

// Called in an exception handler. Exceptions of other libraries leave the backward unchanged.
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
  // The only exception that autograd's engine passes unchanged to Python from any thread.
  python_error error;
  error.persist();
  throw python_error(error);
}

}  // namespace

void translate_backward_errors() { set_backward_error_translator(&throw_out_of_backward); }

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
    translate_error(std::current_exception());
  } catch (const Interruption&) {
    translate_error(std::current_exception());
  } catch (...) {
    torch::translate_exception_to_python(std::current_exception());
  }
}

}  // namespace telens::python
