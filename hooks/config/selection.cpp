#include "hooks/config/selection.h"

#include <algorithm>
#include <array>
#include <string_view>
#include <unordered_set>

#include "core/base/error.h"
#include "hooks/config/feature_description.h"
#include "hooks/config/section_keys.h"
#include "hooks/config/suggestions.h"

namespace telens::config {
namespace {

// The two ways to select along an axis: a list of names, or a list of items with keys (a struct).
struct Axis {
  std::string_view list;
  std::string_view structure;
  std::string_view item;
};
constexpr Axis kGemmAxis{"gemms", "gemms_struct", "gemm"};
constexpr Axis kTensorAxis{"tensors", "tensors_struct", "tensor"};

bool has_axis(const Value& map, const Axis& axis) {
  return map.find(axis.list) || map.find(axis.structure);
}

Value without_axis(const Value& map, const Axis& axis) {
  return map.without(axis.list).without(axis.structure);
}

// The keys for one gemm or tensor of an axis.
struct Choice {
  std::string name;
  Value keys;
};

// Merges the item's keys over the keys next to the struct. An item that selects tensors, in either
// way, replaces the tensors selected next to the struct.
Value overlay(Value map, const Value& item) {
  if (has_axis(item, kTensorAxis)) map = without_axis(map, kTensorAxis);
  return Value(map.with_all(item.as_map()), item.location());
}

// Returns true for an empty list: the feature does nothing.
bool chooses_nothing(const Value& map, const Axis& axis) {
  const Value* items = map.find(axis.structure);
  if (items == nullptr) items = map.find(axis.list);
  return items != nullptr && items->is_list() && items->as_list().empty();
}

// Expands an axis. If both ways are present, the struct is used. Skips malformed items, which the
// validator has reported, and repeated names.
std::vector<Choice> expand(const Value& map, const Axis& axis) {
  std::vector<Choice> choices;
  std::unordered_set<std::string_view> known;
  if (const Value* items = map.find(axis.structure)) {
    const Value outer = map.without(axis.structure);
    for (const Value& item : as_list(*items)) {
      const Value* name = item.find(axis.item);
      if (name && name->is_string() && known.insert(name->as_string()).second) {
        choices.push_back({name->as_string(), overlay(outer, item)});
      }
    }
  } else if (const Value* names = map.find(axis.list)) {
    const Value outer = map.without(axis.list);
    for (const Value& name : as_list(*names)) {
      if (name.is_string() && known.insert(name.as_string()).second) {
        choices.push_back({name.as_string(), outer.with(axis.item, name)});
      }
    }
  }
  return choices;
}

// Returns the keys for one name of the axis. Throws if the configuration selects nothing at all.
std::optional<Value> choose(const Value& map, const Axis& axis, std::string_view name) {
  if (!has_axis(map, axis)) {
    raise<ConfigError>("{}: give '{}: [...]' or '{}: [{{{}: ...}}]'", to_string(map.location()),
                       axis.list, axis.structure, axis.item);
  }
  std::vector<Choice> choices = expand(map, axis);
  const auto found = std::ranges::find(choices, name, &Choice::name);
  if (found == choices.end()) return std::nullopt;
  return std::move(found->keys);
}

// Validates a feature's configuration level by level, then creates its selections.
class Resolver {
 public:
  Resolver(const FeatureDescription& description, ErrorList& errors)
      : description_(description), errors_(errors) {}

  std::vector<Selection> resolve(const Value& config) {
    const std::size_t errors_before = errors_.size();
    check_level(config, Level::feature);
    if (selects_gemms(description_.selects)) {
      check_axis(config, kGemmAxis);
    } else if (selects_tensors(description_.selects)) {
      check_axis(config, kTensorAxis);
    }
    // Each selection holds a copy of the keys. Unknown keys, which may be numerous, are removed;
    // they have been reported.
    std::vector<Selection> selections = select(with_known_keys(config));
    const bool has_struct = config.find(kGemmAxis.structure) || config.find(kTensorAxis.structure);
    const bool is_idle = chooses_nothing(config, kGemmAxis) || chooses_nothing(config, kTensorAxis);
    if (selections.empty() && !has_struct && !is_idle) {
      complete_parameters(config, description_, errors_);
    }
    if (errors_.size() != errors_before) return {};
    for (const Selection& selection : selections) {
      if (description_.validate) description_.validate(selection.parameters, errors_);
    }
    if (description_.parse) parse_options(selections);
    return selections;
  }

 private:
  enum class Level { feature, gemm_item, tensor_item };

  struct ParsedValue {
    const Parameter* parameter;
    Value value;
    OptionsPtr made;
  };

  std::vector<std::string> get_keys(Level level) const {
    std::vector<std::string> keys;
    const auto add_axis = [&](const Axis& axis) {
      keys.emplace_back(axis.list);
      keys.emplace_back(axis.structure);
    };
    if (level == Level::feature) keys.emplace_back(kEnabled);
    if (level == Level::gemm_item) keys.emplace_back(kGemmAxis.item);
    if (level == Level::tensor_item) keys.emplace_back(kTensorAxis.item);
    if (level == Level::feature && selects_gemms(description_.selects)) add_axis(kGemmAxis);
    if (level != Level::tensor_item && selects_tensors(description_.selects)) add_axis(kTensorAxis);
    for (const Parameter& parameter : description_.parameters) keys.push_back(parameter.name);
    if (description_.schedule) keys.insert(keys.end(), kScheduleKeys.begin(), kScheduleKeys.end());
    return keys;
  }

  Value with_known_keys(const Value& config) const {
    const std::vector<std::string> keys = get_keys(Level::feature);
    Value::Map known;
    for (const MapEntry& entry : config.as_map()) {
      const bool is_known = std::ranges::find(keys, entry.key) != keys.end();
      if (is_known && entry.key != kEnabled) known.push_back(entry);
    }
    return Value(Value(std::move(known)), config.location());
  }

  // Selections with equal parameters share their options.
  void parse_options(std::vector<Selection>& selections) {
    for (auto selection = selections.begin(); selection != selections.end(); ++selection) {
      const auto equal = std::find_if(selections.begin(), selection, [&](const Selection& other) {
        return other.parameters == selection->parameters;
      });
      selection->options =
          equal != selection
              ? equal->options
              : description_.parse({selection->parameters, make_from(selection->parameters)},
                                   errors_);
    }
  }

  // Parses the values of a selection's parameters, both written ones and defaults.
  ParameterValues::Made make_from(const Value& parameters) {
    ParameterValues::Made made;
    for (const Parameter& parameter : description_.parameters) {
      const Value* value = parameters.find(parameter.name);
      if (!parameter.parse || value == nullptr) continue;
      const auto known = std::ranges::find_if(parsed_, [&](const ParsedValue& each) {
        return each.parameter == &parameter && each.value == *value;
      });
      if (known != parsed_.end()) {
        made[parameter.name] = known->made;
      } else {
        made[parameter.name] = parameter.parse(*value, errors_);
        parsed_.push_back({&parameter, *value, made[parameter.name]});
      }
    }
    return made;
  }

  // Checks the keys of a map, and the values of its parameters and schedule.
  void check_level(const Value& map, Level level) {
    const std::vector<std::string> known = get_keys(level);
    for (const MapEntry& entry : map.as_map()) {
      if (entry.key == kEnabled && level != Level::feature) {
        errors_.add(entry.key_location,
                    "'enabled' is not allowed in an item of a struct; move it to the feature");
      } else if (std::ranges::find(known, entry.key) == known.end()) {
        errors_.add(entry.key_location, "unknown key '{}'{}; {} takes {}{}", entry.key,
                    suggestion(entry.key, known),
                    level == Level::feature ? description_.name : "an item of a struct",
                    quoted_list(known),
                    entry.value.is_map() ? "; indent another feature less, as this one" : "");
      }
      for (const Parameter& parameter : description_.parameters) {
        if (parameter.name != entry.key) continue;
        const OptionsPtr made = check_parameter(parameter, entry.value, errors_);
        if (made) parsed_.push_back({&parameter, completed(parameter, entry.value), made});
      }
    }
    if (description_.schedule) parse_schedule(map, errors_);
  }

  // Checks the list or struct of an axis in a map, and the items of the struct.
  void check_axis(const Value& map, const Axis& axis) {
    const bool is_gemm = axis.item == kGemmAxis.item;
    if (const Value* items = map.find(axis.structure)) {
      check_struct(*items, axis);
      warn_of_ignored(map, axis);
    } else if (const Value* names = map.find(axis.list)) {
      for (const Value& name : as_list(*names)) check_name(name, axis);
    } else {
      errors_.add(map.location(), "'{}' is missing: give '{}: [{}]' or '{}: [{{{}: {}}}]'",
                  axis.list, axis.list, example_name(axis), axis.structure, axis.item,
                  example_name(axis));
    }
    if (!is_gemm || !selects_tensors(description_.selects)) return;
    // Tensors are selected in each item or, for items without tensors, next to the struct.
    for (const Choice& gemm : expand(map, kGemmAxis)) check_axis(gemm.keys, kTensorAxis);
    if (has_axis(map, kTensorAxis) || !has_axis(map, kGemmAxis)) check_axis(map, kTensorAxis);
  }

  void warn_of_ignored(const Value& map, const Axis& axis) {
    const Value* list = map.find(axis.list);
    if (list == nullptr) return;
    errors_.warn(list->location(),
                 "'{}' has no effect: the items of '{}' replace it; remove one of them", axis.list,
                 axis.structure);
  }

  void check_struct(const Value& items, const Axis& axis) {
    if (!items.is_list()) {
      errors_.add(items.location(), "'{}' must be a list of mappings, each with '{}', not {}",
                  axis.structure, axis.item, describe(items));
      return;
    }
    std::unordered_set<std::string_view> seen;
    for (const Value& item : items.as_list()) {
      const Value* name = item.find(axis.item);
      if (!name) {
        errors_.add(item.location(), "an item of '{}' must be a mapping with '{}', not {}",
                    axis.structure, axis.item, describe(item));
        continue;
      }
      check_name(*name, axis);
      if (name->is_string() && !seen.insert(name->as_string()).second) {
        errors_.add(name->location(), "'{}' occurs twice in '{}'; keep one item", name->as_string(),
                    axis.structure);
      }
      check_level(item, axis.item == kGemmAxis.item ? Level::gemm_item : Level::tensor_item);
    }
  }

  std::vector<std::string> names_of_axis(const Axis& axis) const {
    if (axis.item == kTensorAxis.item) return description_.tensors;
    std::vector<std::string> names;
    for (const Gemm gemm : kAllGemms) names.emplace_back(get_name(gemm));
    return names;
  }

  std::string example_name(const Axis& axis) const {
    const std::vector<std::string> names = names_of_axis(axis);
    return names.empty() ? "..." : names.front();
  }

  void check_name(const Value& name, const Axis& axis) {
    const std::vector<std::string> names = names_of_axis(axis);
    if (!name.is_string()) {
      errors_.add(name.location(), "'{}' must be a list of strings, not {}", axis.list,
                  describe(name));
    } else if (!names.empty() && std::ranges::find(names, name.as_string()) == names.end()) {
      const bool is_other_tensor =
          axis.item == kTensorAxis.item && tensor_from_name(name.as_string());
      errors_.add(name.location(), "{} '{}'{}; {} takes {}",
                  is_other_tensor ? "the feature does not serve the tensor"
                                  : fmt::format("unknown {}", axis.item),
                  name.as_string(), is_other_tensor ? "" : suggestion(name.as_string(), names),
                  description_.name, quoted_list(names));
    }
  }

  std::vector<Selection> select(const Value& config) {
    std::vector<Selection> selections;
    const bool by_gemm = selects_gemms(description_.selects);
    const bool by_tensor = selects_tensors(description_.selects);
    const std::vector<Choice> gemms =
        by_gemm ? expand(config, kGemmAxis) : std::vector<Choice>{{"", config}};
    for (const Choice& gemm : gemms) {
      const std::vector<Choice> tensors =
          by_tensor ? expand(gemm.keys, kTensorAxis) : std::vector<Choice>{{"", gemm.keys}};
      for (const Choice& tensor : tensors) {
        Selection selection;
        if (by_gemm) selection.gemm = gemm_from_name(gemm.name);
        if (by_tensor) selection.tensor = tensor.name;
        selection.parameters = complete_parameters(tensor.keys, description_, errors_);
        ErrorList reported;  // schedules have already been checked at their own level
        if (description_.schedule) {
          selection.schedule = parse_schedule(tensor.keys, reported);
          warn_of_idle_schedule(tensor.keys, errors_);
        }
        selections.push_back(std::move(selection));
      }
    }
    return selections;
  }

  const FeatureDescription& description_;
  ErrorList& errors_;
  std::vector<ParsedValue> parsed_;  // each parsed value, once
};

}  // namespace

bool is_idle(const Selection& selection) {
  if (!selection.gemm || !selection.tensor) return false;
  const auto known = tensor_from_name(*selection.tensor);
  return known && !belongs_to(*known, *selection.gemm);
}

std::optional<Value> matched_config(const Value& feature_config, std::optional<Gemm> gemm,
                                    std::optional<std::string_view> tensor) {
  std::optional<Value> config = feature_config.without(kEnabled);
  if (gemm) config = choose(*config, kGemmAxis, get_name(*gemm));
  if (config && tensor) config = choose(*config, kTensorAxis, *tensor);
  return config;
}

std::vector<Selection> resolve_selections(const Value& feature_config,
                                          const FeatureDescription& description,
                                          ErrorList& errors) {
  return Resolver(description, errors).resolve(feature_config);
}

}  // namespace telens::config
