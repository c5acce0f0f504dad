// Environment variables that debug.initialize() reads, set by programs that start others with a
// session.
#pragma once

namespace telens::config {

// The path of a configuration, and a folder. They replace those that the program passes.
inline constexpr const char* kConfigVariable = "TELENS_CONFIG";
inline constexpr const char* kLogDirVariable = "TELENS_LOG_DIR";
// "off": no section skips iterations to stay within its `budget`.
inline constexpr const char* kBudgetVariable = "TELENS_BUDGET";

}  // namespace telens::config
