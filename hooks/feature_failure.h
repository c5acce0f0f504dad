// Reports and rethrows exceptions of features.
#pragma once

#include <string>

namespace telens {

// Returns the message of the current exception, without a backtrace.
std::string message_of_current_exception();

// Rethrows the current exception with the context prepended to its message and the original nested
// in it. Types derived from telens::Error are preserved; interruptions are rethrown unchanged.
[[noreturn]] void rethrow_with_context(const std::string& context);

}  // namespace telens
