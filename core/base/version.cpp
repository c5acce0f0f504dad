#include "core/base/version.h"

namespace telens {

constinit const std::string_view kVersion = TELENS_VERSION;

}  // namespace telens
