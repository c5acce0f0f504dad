// Compares the configurations of all ranks: a value reduced over ranks that watch different things
// would have no name.
#pragma once

#include <string>

#include "hooks/session_options.h"

namespace telens {

// Names the sections of the configuration that are not those of rank 0, with their ranks; "" where
// all ranks of the world have the same. Every rank has to call this.
std::string different_sections(const std::string& config_text, const debug::ReductionGroup& world);

}  // namespace telens
