// Taking and releasing the GIL in threads that may outlive the interpreter.
//
// While the interpreter ends, a thread that wants the GIL is unwound (pthread_exit) up to Python
// 3.13, through whatever C++ it is in: a destructor on the way, such as that of
// pybind11::gil_scoped_release, ends the process by std::terminate. Such a thread stops here for
// good instead, as Python 3.14 lets it; the process exits around it. Torch's own code, and other
// extensions, end the process so: spare_exits() keeps them from it.
#pragma once

#include <pybind11/pybind11.h>

#include <optional>

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

// From here on a thread that is unwound because the interpreter ends, and comes to a function that
// may not throw, waits for the end of the process instead of aborting it; after some seconds it
// aborts as ever. Once, with the GIL.
void spare_exits();

}  // namespace telens::python
