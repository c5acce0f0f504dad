#pragma once

#include <string_view>

namespace telens {

// The project's version, "0.1.0". Only version.cpp receives it from CMake, so a new version
// recompiles one source.
extern const std::string_view kVersion;

}  // namespace telens
