#pragma once

#include <string>

namespace telens {

// The text as a POSIX shell takes it for one word, in single quotes where it needs them. Commands
// that the output offers for copying name runs and folders, whose names may hold any character.
std::string shell_word(const std::string& text);

}  // namespace telens
