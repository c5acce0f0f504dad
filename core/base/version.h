#pragma once

#include <string_view>

namespace telens {

// The project's version, "0.1.0". One source knows it from CMake, so no other is compiled anew, or
// by itself, for a macro.
extern const std::string_view kVersion;

}  // namespace telens
