#include "hooks/feature_failure.h"

#include <c10/util/Exception.h>
#include <fmt/format.h>

#include <exception>
#include <string_view>

#include "core/base/error.h"

namespace telens {
namespace {

// pybind11 appends the stack to the message of a Python exception, innermost frame first. That
// frame shows the place that raised the exception; all others belong to TELens.
std::string with_innermost_frame(const std::string& text) {
  constexpr std::string_view kStack = "\n\nAt:\n  ";
  const std::size_t stack = text.find(kStack);
  if (stack == text.npos) return text;
  const std::size_t frame = stack + kStack.size();
  return fmt::format("{} (at {})", text.substr(0, stack),
                     text.substr(frame, text.find('\n', frame) - frame));
}

}  // namespace

std::string message_of_current_exception() {
  try {
    throw;
  } catch (const c10::Error& error) {
    return error.what_without_backtrace();
  } catch (const std::exception& error) {
    return with_innermost_frame(error.what());
  } catch (...) {
    return "an exception that is not a std::exception";
  }
}

void rethrow_with_context(const std::string& context) {
  rethrow_interruption();
  const std::string message = context + ": " + message_of_current_exception();
  try {
    throw;
  } catch (const ShapeError&) {
    std::throw_with_nested(ShapeError(message));
  } catch (const ConfigError&) {
    std::throw_with_nested(ConfigError(message));
  } catch (const UsageError&) {
    std::throw_with_nested(UsageError(message));
  } catch (...) {
    std::throw_with_nested(Error(message));
  }
}

}  // namespace telens
