// Derives the settings of a session from its options.
#pragma once

#include <string>

#include "hooks/config/config.h"
#include "hooks/session_options.h"

namespace telens::debug {

// Some files are opened late, when a program like Hydra has changed its working directory.
InitializeOptions with_absolute_log_dir(InitializeOptions options);

// Throws ConfigError.
config::Config load_config(const InitializeOptions& options,
                           const config::Descriptions& descriptions);

// A sentence for the user where the ranks of the world have different configurations, else "".
// Every rank of the world has to call this.
std::string difference_of_ranks(const InitializeOptions& options, const config::Config& config);

}  // namespace telens::debug
