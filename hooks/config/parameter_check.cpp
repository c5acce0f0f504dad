#include "hooks/config/parameter_check.h"

#include <algorithm>

#include "hooks/config/suggestions.h"

namespace telens::config {
namespace {

bool is_list_type(ParameterType type) {
  return type == ParameterType::list || type == ParameterType::list_of_strings;
}

bool fits(ParameterType type, const Value& value) {
  switch (type) {
    case ParameterType::boolean:
      return value.is_bool();
    case ParameterType::integer:
      return value.is_integer();
    case ParameterType::number:
      return value.is_number();
    case ParameterType::string:
      return value.is_string();
    case ParameterType::list_of_strings:
      return std::ranges::all_of(as_list(value), &Value::is_string);
    case ParameterType::list:
      return !value.is_null();
    case ParameterType::map:
      return value.is_map();
    case ParameterType::any:
      break;
  }
  return true;
}

}  // namespace

Value::List as_list(const Value& value) {
  return value.is_list() ? value.as_list() : Value::List{value};
}

void check_not_empty(const Value& value, std::string_view key, ErrorList& errors) {
  if (!value.is_list() || !value.as_list().empty()) return;
  errors.add(value.location(),
             "'{}' is empty; list at least one, or write 'enabled: False' to disable the "
             "feature or section",
             key);
}

OptionsPtr check_parameter(const Parameter& parameter, const Value& value, ErrorList& errors) {
  if (!fits(parameter.type, value)) {
    errors.add(value.location(), "'{}' must be {}, not {}", parameter.name,
               get_name(parameter.type), describe(value));
    return nullptr;
  }
  if (parameter.required && is_list_type(parameter.type)) {
    check_not_empty(value, parameter.name, errors);
  }
  bool right = true;
  if (!parameter.allowed_values.empty()) {
    for (const Value& item : as_list(value)) {
      const auto& allowed = parameter.allowed_values;
      if (std::ranges::find(allowed, item.as_string()) != allowed.end()) continue;
      errors.add(item.location(), "'{}' cannot be '{}'{}; expected one of {}", parameter.name,
                 item.as_string(), suggestion(item.as_string(), allowed), quoted_list(allowed));
      right = false;
    }
  }
  if (!right) return nullptr;
  if (parameter.validate) parameter.validate(value, errors);
  return parameter.parse ? parameter.parse(value, errors) : nullptr;
}

Value completed(const Parameter& parameter, const Value& value) {
  return is_list_type(parameter.type) ? Value(Value(as_list(value)), value.location()) : value;
}

Value complete_parameters(const Value& keys, const FeatureDescription& description,
                          ErrorList& errors) {
  Value::Map parameters;
  for (const Parameter& parameter : description.parameters) {
    const Value* value = keys.find(parameter.name);
    if (!value && parameter.required) {
      errors.add(keys.location(), "'{}' is missing; it must be {}{}", parameter.name,
                 get_name(parameter.type),
                 parameter.allowed_values.empty()
                     ? ""
                     : ", one of " + quoted_list(parameter.allowed_values));
    }
    const Value& given = value ? *value : parameter.default_value;
    if (!value && given.is_null()) continue;
    parameters.push_back({parameter.name, completed(parameter, given)});
  }
  return Value(Value(std::move(parameters)), keys.location());
}

}  // namespace telens::config
