// Checks values against the parameters that a feature declares.
#pragma once

#include "hooks/config/feature_description.h"
#include "hooks/config/value.h"

namespace telens::config {

// Returns the items of a list. A value that is not a list is a list with one element.
Value::List as_list(const Value& value);

// Adds an error for an empty list, which would select nothing.
void check_not_empty(const Value& value, std::string_view key, ErrorList& errors);

// Checks the type and the allowed values, then runs the parameter's validator and parser. Returns
// the result of its parser; null if it has none or the value has errors.
OptionsPtr check_parameter(const Parameter& parameter, const Value& value, ErrorList& errors);

// Returns a value as features receive it: if a list is declared, a value that is not a list becomes
// a list with one element.
Value completed(const Parameter& parameter, const Value& value);

// Returns the declared parameters among the keys, with values as lists if declared so, and with
// defaults. A missing required parameter is an error.
Value complete_parameters(const Value& keys, const FeatureDescription& description,
                          ErrorList& errors);

}  // namespace telens::config
