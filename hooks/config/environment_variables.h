// Environment variables that debug.initialize() reads, for what starts programs with a session.
#pragma once

namespace telens::config {

// The path of a configuration, and a folder; they replace the program's own.
inline constexpr const char* kConfigVariable = "TELENS_CONFIG";
inline constexpr const char* kLogDirVariable = "TELENS_LOG_DIR";
// "off": no section thins its features to stay within its `budget`.
inline constexpr const char* kBudgetVariable = "TELENS_BUDGET";

}  // namespace telens::config
