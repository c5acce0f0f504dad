#pragma once

#include <string_view>

namespace telens {

// The project's version, "0.1.0". Only version.cpp receives it from CMake, so a new version
// recompiles one source.
extern const std::string_view kVersion;

// Returns the version of LibTorch that libtelens.so was built with, "2.11.0". Defined in
// core/torch_compat.cpp.
std::string_view torch_version();

}  // namespace telens
