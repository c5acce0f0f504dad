// Environment variables that debug.initialize() reads, for what starts programs with a session.
#pragma once

namespace telens::config {

// The path of a configuration, and a folder; they take the place of the program's own.
inline constexpr const char* kConfigVariable = "TELENS_CONFIG";
inline constexpr const char* kLogDirVariable = "TELENS_LOG_DIR";

}  // namespace telens::config
