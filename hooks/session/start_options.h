// Derives the settings of a session from its options.
#pragma once

#include <string>

#include "hooks/config/config.h"
#include "hooks/session_options.h"

namespace telens::debug {

// Returns the options of the call, overridden by the environment. TELENS_CONFIG (the path of a
// configuration) and TELENS_LOG_DIR replace the program's options, so that a program can run
// unchanged under another configuration, as `telens bisect` does; "" counts as unset. The log_dir
// becomes absolute: some files are opened late, when a program like Hydra has changed its working
// directory. Throws UsageError for a path with a NUL character.
InitializeOptions settled(InitializeOptions options);

// Returns true if TELENS_BUDGET is "off". Throws UsageError for any other text.
bool budgets_are_off();

// Loads the configuration. Throws ConfigError.
config::Config load_config(const InitializeOptions& options,
                           const config::Descriptions& descriptions);

// Returns a sentence for the user if the ranks of the world have different configurations, else "".
// Every rank of the world has to call this.
std::string difference_of_ranks(const InitializeOptions& options, const config::Config& config);

}  // namespace telens::debug
