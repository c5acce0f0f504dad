#include "python/bindings/gil.h"

#include <cxxabi.h>
#include <unistd.h>

#include <cstdlib>
#include <exception>

namespace telens::python {
namespace {

bool interpreter_ends() {
#if PY_VERSION_HEX >= 0x030D0000
  return Py_IsFinalizing() != 0;
#else
  return _Py_IsFinalizing() != 0;
#endif
}

// The main thread is the one that ends the interpreter.
bool is_main_thread() { return gettid() == getpid(); }

[[noreturn]] void stop_for_good() {
  for (;;) pause();
}

// Runs code that takes the GIL.
template <typename Take>
void take_gil(const Take& take) {
  if (interpreter_ends() && !is_main_thread() && PyGILState_Check() == 0) stop_for_good();
  try {
    take();
  } catch (const abi::__forced_unwind&) {  // the interpreter has begun to end in between
    stop_for_good();
  }
}

// A parked thread holds up an exit that joins it; the exit must not hang.
constexpr unsigned kLongestExit = 10;  // seconds

std::terminate_handler terminate_before = nullptr;

// No exception is active: the unwinding of an ending thread has reached a noexcept function.
[[noreturn]] void terminate() {
  const bool is_unwound = std::current_exception() == nullptr && !is_main_thread() &&
                          (Py_IsInitialized() == 0 || interpreter_ends());
  if (is_unwound) sleep(kLongestExit);
  if (terminate_before != nullptr) terminate_before();
  std::abort();
}

}  // namespace

void spare_exits() { terminate_before = std::set_terminate(&terminate); }

WithGil::WithGil() {
  take_gil([this] { held_.emplace(); });
}

WithoutGil::WithoutGil() : thread_(PyEval_SaveThread()) {}

WithoutGil::~WithoutGil() {
  take_gil([this] { PyEval_RestoreThread(thread_); });
}

}  // namespace telens::python
