// Compares all ranks' configurations: a value reduced over ranks that watch different quantities
// would be meaningless.
#pragma once

#include <string>

#include "hooks/session_options.h"

namespace telens {

// Names the sections of the configuration that differ from the sections of rank 0, with their
// ranks; "" if all ranks of the world have the same. Every rank has to call this.
std::string different_sections(const std::string& config_text, const debug::ReductionGroup& world);

}  // namespace telens
