// Taking and releasing the GIL in threads that may outlive the interpreter.
// Up to Python 3.13, a thread that requests the GIL while the interpreter ends is unwound by
// pthread_exit. If the unwinding reaches a noexcept function, such as the destructor of
// pybind11::gil_scoped_release, std::terminate ends the process. WithGil and WithoutGil block such
// a thread until the process exits, as Python 3.14 does. spare_exits() does the same for torch and
// other extensions.
#pragma once

#include <pybind11/pybind11.h>

#include <memory>
#include <optional>
#include <utility>

namespace telens::python {

// Holds the GIL while it lives.
class WithGil {
 public:
  WithGil();
  WithGil(const WithGil&) = delete;
  WithGil& operator=(const WithGil&) = delete;

 private:
  std::optional<pybind11::gil_scoped_acquire> held_;
};

// Releases the GIL while it lives. Also a pybind11::call_guard.
class WithoutGil {
 public:
  WithoutGil();
  ~WithoutGil();
  WithoutGil(const WithoutGil&) = delete;
  WithoutGil& operator=(const WithoutGil&) = delete;

 private:
  PyThreadState* thread_;
};

// After this call, a thread that is unwound at interpreter exit and reaches a noexcept function
// waits for the end of the process instead of aborting it. After some seconds it aborts. Call it
// once, with the GIL held.
void spare_exits();

using GilObject = std::shared_ptr<const pybind11::object>;

// Requires the GIL. The last owner takes the GIL to release the object; after the interpreter has
// ended it does nothing.
inline GilObject share(pybind11::object object) {
  return {new pybind11::object(std::move(object)), [](const pybind11::object* owned) {
            if (Py_IsInitialized() != 0) {
              const WithGil gil;
              delete owned;
            }
          }};
}

}  // namespace telens::python
