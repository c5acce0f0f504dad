#include "hooks/session_parts.h"

#include <optional>
#include <utility>

namespace telens {
namespace {

std::optional<SessionParts>& parts() {
  static std::optional<SessionParts> instance;
  return instance;
}

}  // namespace

void set_default_parts(SessionParts given) { parts() = std::move(given); }

const SessionParts& default_parts() {
  if (!parts()) {
    raise<UsageError>(
        "debug.initialize: this program has neither features nor a run file; link libtelens.so, or "
        "hand the parts of the session to initialize()");
  }
  return *parts();
}

}  // namespace telens
