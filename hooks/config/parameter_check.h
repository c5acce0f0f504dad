// Values against the parameters that a feature declares.
#pragma once

#include "hooks/config/feature_description.h"
#include "hooks/config/value.h"

namespace telens::config {

// The items of a list; what is no list stands for a list of one.
Value::List as_list(const Value& value);

// Adds an error for an empty list: it would choose nothing.
void check_not_empty(const Value& value, std::string_view key, ErrorList& errors);

// Type, allowed values, then the parameter's own validator and parser. Returns what its parser
// made; null: it has none, or the value has errors.
OptionsPtr check_parameter(const Parameter& parameter, const Value& value, ErrorList& errors);

// A value as features get it: what is no list stands for a list of one where a list is declared.
Value completed(const Parameter& parameter, const Value& value);

// The declared parameters among the keys: lists are lists, defaults filled in. One that is required
// and missing is an error.
Value complete_parameters(const Value& keys, const FeatureDescription& description,
                          ErrorList& errors);

}  // namespace telens::config
