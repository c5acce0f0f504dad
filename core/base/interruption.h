// Exceptions that no guard around foreign code may keep to itself.
#pragma once

#include <exception>

#include "core/base/error.h"

namespace telens {

// Thrown with an exception nested in it that ends the program on purpose, such as Python's
// KeyboardInterrupt and SystemExit. No Error: code that handles failures lets it pass.
class TELENS_EXPORT Interruption : public std::exception {
 public:
  const char* what() const noexcept override { return "the program is told to end"; }
};

// Within a handler that would keep any exception: throws again what has to pass, which is an
// Interruption and the unwinding of a thread that ends.
TELENS_EXPORT void let_interruptions_pass();

}  // namespace telens
