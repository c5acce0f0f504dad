// Converts YAML text to a Value, like PyYAML's safe_load: YAML 1.1 scalars (yes, on, 0o17 is a
// string, 017 is 15), merge keys applied, anchors. Unlike in PyYAML, a duplicate key is a mistake.
#pragma once

#include <string_view>

#include "hooks/config/error_list.h"
#include "hooks/config/value.h"

namespace telens::config {

// Returns null for an empty text. Adds mistakes to the errors.
Value read_yaml(std::string_view yaml, std::string_view source_name, ErrorList& errors);

// Returns the value of a plain (unquoted) scalar. An integer beyond 64 bits is a string.
Value plain_scalar(std::string_view text);

// Returns true for a plain scalar that YAML reads as an integer but that exceeds 64 bits.
bool is_too_large_integer(std::string_view text);

}  // namespace telens::config
