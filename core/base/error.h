// The exceptions of TELens and the one way to throw them. No LibTorch.
//
// A message names the thing, the expected value, the given value and the fix:
//   raise<ShapeError>("layers.0.fc1: activation has {} rows; FP8 needs a multiple of 16; pad ...")
#pragma once

#include <fmt/format.h>

#include <exception>
#include <stdexcept>
#include <string>
#include <utility>

#if defined(__GNUC__)
#define TELENS_EXPORT __attribute__((visibility("default")))
#else
#define TELENS_EXPORT
#endif

namespace telens {

// Base class; Python sees telens.Error (a RuntimeError).
class TELENS_EXPORT Error : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// A wrong argument or call; in Python also a ValueError.
class TELENS_EXPORT UsageError : public Error {
 public:
  using Error::Error;
};

// An operation does not support a tensor's shape, dtype or device; in Python also a ValueError.
class TELENS_EXPORT ShapeError : public UsageError {
 public:
  using UsageError::UsageError;
};

// One or more mistakes in a debug configuration, each with file:line:column.
class TELENS_EXPORT ConfigError : public UsageError {
 public:
  using UsageError::UsageError;
};

// A run file that cannot be written or read.
class TELENS_EXPORT RecordError : public Error {
 public:
  using Error::Error;
  RecordError(const std::string& message, bool is_truncated)
      : Error(message), is_truncated_(is_truncated) {}

  // Returns true if the file ends before its data does, for example after an interrupted copy.
  bool is_truncated() const { return is_truncated_; }

 private:
  bool is_truncated_ = false;
};

// A broken invariant: a bug in TELens, never a caller's mistake. Python sees telens.Error. The
// message names the invariant and its values for a bug report.
class TELENS_EXPORT InternalError : public Error {
 public:
  using Error::Error;
};

// Ends the program on purpose; contains a nested exception such as Python's KeyboardInterrupt or
// SystemExit. Not an Error: code that handles failures must not catch it.
class TELENS_EXPORT Interruption : public std::exception {
 public:
  const char* what() const noexcept override {
    return "interrupted (KeyboardInterrupt or SystemExit)";
  }
};

// Call first in a catch (...) handler that swallows exceptions. Rethrows the current exception if
// it is an Interruption or the unwinding of a thread that ends.
TELENS_EXPORT void rethrow_interruption();

template <typename E = Error, typename... Args>
[[noreturn]] void raise(fmt::format_string<Args...> format, Args&&... args) {
  throw E(fmt::format(format, std::forward<Args>(args)...));
}

}  // namespace telens
