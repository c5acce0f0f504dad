// Derives the settings of a session from its options.
#pragma once

#include <string>

#include "hooks/config/config.h"
#include "hooks/session_options.h"

namespace telens::debug {

// The options of a session: those of the call, but for what the environment sets. TELENS_CONFIG
// (the path of a configuration) and TELENS_LOG_DIR take the place of the program's own, so that a
// program can be run under another configuration unchanged, as `telens bisect` does; "" is unset.
// The log_dir becomes absolute: some files are opened late, when a program like Hydra has changed
// its working directory. Throws UsageError for a path with a NUL character.
InitializeOptions settled(InitializeOptions options);

// True if TELENS_BUDGET is "off". Throws UsageError for any other text.
bool budgets_are_off();

// Throws ConfigError.
config::Config load_config(const InitializeOptions& options,
                           const config::Descriptions& descriptions);

// A sentence for the user where the ranks of the world have different configurations, else "".
// Every rank of the world has to call this.
std::string difference_of_ranks(const InitializeOptions& options, const config::Config& config);

}  // namespace telens::debug
