#include "hooks/feature_failure.h"

#include <c10/util/Exception.h>

#include <exception>

#include "core/base/error.h"

namespace telens {

std::string message_of_current_exception() {
  try {
    throw;
  } catch (const c10::Error& error) {
    return error.what_without_backtrace();
  } catch (const std::exception& error) {
    return error.what();
  } catch (...) {
    return "an exception that is no std::exception";
  }
}

void rethrow_with_context(const std::string& context) {
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
