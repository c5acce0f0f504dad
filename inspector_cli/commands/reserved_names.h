// Names that a plugin's class and files cannot have.
#pragma once

#include <string_view>

namespace telens::cli {

// Whether a class in C++ or Python cannot be called that: its own words, macros of C++, and what
// the templates of plugins use.
bool is_reserved_class(std::string_view name);

// Whether files, targets and sections cannot be called that: words of C++, Python and YAML, and
// targets that CMake makes itself.
bool is_reserved_file(std::string_view name);

}  // namespace telens::cli
