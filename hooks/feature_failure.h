// Reports and rethrows exceptions of features.
#pragma once

#include <string>

namespace telens {

// The message of the exception that is being handled, without a backtrace.
std::string message_of_current_exception();

// Throws the exception that is being handled anew, with the context in front of its message and
// the original nested in it. What derives from telens::Error keeps its type; interruptions pass as
// they are.
[[noreturn]] void rethrow_with_context(const std::string& context);

}  // namespace telens
