#pragma once

#include <string_view>

namespace telens {

// The project's version, "0.1.0". Only version.cpp receives it from CMake, so a new version
// recompiles one source.
extern const std::string_view kVersion;

// Returns the version of LibTorch that runs, "2.11.0". Defined in core/torch_compat.cpp.
std::string_view torch_version();
// Returns the version whose C++ API the library uses; "" for libtelens_observe.so, which uses only
// the stable ABI.
std::string_view torch_api_version();

}  // namespace telens
