// The exceptions of TELens and the one way to throw them. No LibTorch.
//
// A message names the thing, what was expected, what came, and how to mend it:
//   raise<ShapeError>("layers.0.fc1: activation has {} rows; FP8 needs a multiple of 16; pad ...")
#pragma once

#include <fmt/format.h>

#include <stdexcept>
#include <string>
#include <utility>

#if defined(__GNUC__)
#define TELENS_EXPORT __attribute__((visibility("default")))
#else
#define TELENS_EXPORT
#endif

namespace telens {

// Base of all; Python sees telens.Error (a RuntimeError).
class TELENS_EXPORT Error : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// A wrong argument or call; Python sees a ValueError too.
class TELENS_EXPORT UsageError : public Error {
 public:
  using Error::Error;
};

// A tensor whose shape, dtype or device an operation cannot take; Python sees a ValueError too.
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

template <typename E = Error, typename... Args>
[[noreturn]] void raise(fmt::format_string<Args...> format, Args&&... args) {
  throw E(fmt::format(format, std::forward<Args>(args)...));
}

}  // namespace telens
