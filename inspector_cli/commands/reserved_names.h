// Names that a plugin's class and files cannot have.
#pragma once

#include <string_view>

namespace telens::cli {

// True if a class in C++ or Python cannot have this name: words of the languages, macros of C++,
// and what the templates of plugins use.
bool is_reserved_class(std::string_view name);

// True if files, targets and sections cannot have this name: words of C++, Python and YAML, and
// targets that CMake makes itself.
bool is_reserved_file(std::string_view name);

}  // namespace telens::cli
