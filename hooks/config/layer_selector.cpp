#include "hooks/config/layer_selector.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <charconv>
#include <limits>
#include <unordered_set>

#include "core/base/error.h"
#include "core/base/text.h"
#include "hooks/config/feature_description.h"
#include "hooks/config/suggestions.h"

namespace telens::config {
namespace {

constexpr std::string_view kExactNames = "exact_layer_names";
constexpr std::string_view kRegex = "layer_name_regex_pattern";
constexpr std::string_view kNumbers = "layer_numbers";
constexpr std::string_view kTypes = "layer_types";
constexpr std::string_view kAll = "all";

// How to fix an empty string. As a part of a name, it would match every layer.
constexpr std::string_view kMendName = "; write a layer's whole name";
constexpr std::string_view kMendType =
    "; write a part of layers' names such as fc1, or 'all' for all layers";

// Digits after these prefixes belong to the kind of layer, not to its number: fc1, gemm_0.
constexpr std::array<std::string_view, 2> kNumberedKinds{"fc", "gemm_"};

constexpr std::int64_t kLargestNumber = std::numeric_limits<std::int64_t>::max();

bool is_all(std::string_view text) {
  return std::ranges::equal(text, kAll,
                            [](unsigned char a, unsigned char b) { return std::tolower(a) == b; });
}

bool contains(std::string_view text, std::string_view part) {
  return text.find(part) != std::string_view::npos;
}

std::optional<std::int64_t> whole_number(std::string_view text) {
  std::int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (text.empty() || !is_digit(text[0]) || error != std::errc{} ||
      end != text.data() + text.size()) {
    return std::nullopt;
  }
  return value;
}

// `fix`: what to write instead of an empty string, for the message.
std::vector<LocatedName> parse_names(const Value& value, std::string_view key, std::string_view fix,
                                     ErrorList& errors) {
  std::vector<LocatedName> names;
  for (const Value& item : as_list(value)) {
    if (item.is_string() && item.as_string().empty()) {
      errors.add(item.location(), "'{}' holds an empty string, which names no layer{}", key, fix);
    } else if (item.is_string()) {
      names.push_back({item.as_string(), item.location()});
    } else {
      errors.add(item.location(), "'{}' must be a list of strings, not {}", key, describe(item));
    }
  }
  return names;
}

// 3, "3", "5-8" or "all"
std::optional<NumberRange> parse_number(const Value& value) {
  if (value.is_integer() && value.as_integer() >= 0) {
    return NumberRange{value.as_integer(), value.as_integer()};
  }
  if (!value.is_string()) return std::nullopt;
  const std::string_view text = value.as_string();
  if (is_all(text)) return NumberRange{0, kLargestNumber};
  if (const auto number = whole_number(text)) return NumberRange{*number, *number};
  const auto dash = text.find('-');
  if (dash == std::string_view::npos) return std::nullopt;
  const auto first = whole_number(text.substr(0, dash));
  const auto last = whole_number(text.substr(dash + 1));
  if (!first || !last || *first > *last) return std::nullopt;
  return NumberRange{*first, *last};
}

std::vector<NumberRange> parse_numbers(const Value& value, ErrorList& errors) {
  std::vector<NumberRange> ranges;
  for (const Value& item : as_list(value)) {
    if (auto range = parse_number(item)) {
      range->location = item.location();
      ranges.push_back(*range);
    } else {
      errors.add(
          item.location(),
          "'{}' takes numbers from 0, ranges such as 5-8 (smaller first), or \"all\", not {}",
          kNumbers, describe(item));
    }
  }
  return ranges;
}

std::optional<PythonRegex> parse_regex(const Value& value, ErrorList& errors) {
  if (!value.is_string()) {
    errors.add(value.location(), "'{}' must be a string, not {}", kRegex, describe(value));
    return std::nullopt;
  }
  if (value.as_string().empty()) {
    errors.warn(value.location(),
                "'{}' is empty, which is found in every layer's name; write '.*' if all layers are "
                "meant",
                kRegex);
  }
  try {
    return PythonRegex(value.as_string());
  } catch (const UsageError& error) {
    errors.add(value.location(), "{}", error.what());
    return std::nullopt;
  }
}

}  // namespace

std::optional<std::int64_t> layer_number(std::string_view layer_name) {
  std::size_t begin = 0;
  while (true) {
    begin = std::min(layer_name.find_first_of("0123456789", begin), layer_name.size());
    if (begin == layer_name.size()) return std::nullopt;
    std::size_t end = begin;
    while (end < layer_name.size() && is_digit(layer_name[end])) ++end;
    const std::string_view before = layer_name.substr(0, begin);
    const bool belongs_to_kind = std::ranges::any_of(
        kNumberedKinds, [&](std::string_view kind) { return before.ends_with(kind); });
    if (!belongs_to_kind) return whole_number(layer_name.substr(begin, end - begin));
    begin = end;
  }
}

bool LayerSelector::is_key(std::string_view word) {
  return word == kRegex || word == kTypes || word == kNumbers || word == kExactNames;
}

LayerSelector LayerSelector::parse(const Value& layers, ErrorList& errors) {
  static const std::vector<std::string> kKeys{std::string(kRegex), std::string(kTypes),
                                              std::string(kNumbers), std::string(kExactNames)};
  LayerSelector selector;
  if (!layers.is_map() || layers.as_map().empty()) {
    errors.add(layers.location(), "'layers' must be a mapping with at least one of {}, not {}",
               quoted_list(kKeys), describe(layers));
    return selector;
  }
  for (const MapEntry& entry : layers.as_map()) {
    selector.keys_.push_back({entry.key, entry.key_location});
    if (entry.key != kRegex) check_not_empty(entry.value, entry.key, errors);
    if (entry.key == kExactNames) {
      selector.exact_names_ = parse_names(entry.value, entry.key, kMendName, errors);
    } else if (entry.key == kRegex) {
      selector.regex_ = parse_regex(entry.value, errors);
    } else if (entry.key == kNumbers) {
      selector.numbers_ = parse_numbers(entry.value, errors);
    } else if (entry.key == kTypes) {
      selector.types_ = parse_names(entry.value, entry.key, kMendType, errors);
      selector.all_types_ = std::ranges::any_of(*selector.types_, is_all, &LocatedName::name);
    } else {
      errors.add(entry.key_location, "unknown key '{}' in 'layers'{}; it takes {}{}", entry.key,
                 suggestion(entry.key, kKeys), quoted_list(kKeys),
                 entry.value.is_map() ? "; indent a feature or namespace less, as 'layers:'" : "");
    }
  }
  return selector;
}

bool LayerSelector::selects(std::string_view layer_name) const {
  if (exact_names_) {
    return std::ranges::find(*exact_names_, layer_name, &LocatedName::name) != exact_names_->end();
  }
  if (regex_) return regex_->search(layer_name);
  if (!numbers_ && !types_) return false;
  return (!numbers_ || selects_number_of(layer_name)) && (!types_ || selects_type_of(layer_name));
}

bool LayerSelector::selects_number_of(std::string_view layer_name) const {
  const std::optional<std::int64_t> number = layer_number(layer_name);
  return number && std::ranges::any_of(*numbers_, [&](const NumberRange& range) {
           return range.first <= *number && *number <= range.last;
         });
}

bool LayerSelector::selects_type_of(std::string_view layer_name) const {
  return all_types_ || std::ranges::any_of(*types_, [&](const LocatedName& type) {
           return contains(layer_name, type.name);
         });
}

void LayerSelector::find_idle(std::span<const std::string> layer_names, ErrorList& findings) const {
  find_outranked(findings);
  const auto none = [&](auto fits) { return std::ranges::none_of(layer_names, fits); };
  if (exact_names_) {
    const std::unordered_set<std::string_view> known(layer_names.begin(), layer_names.end());
    for (const LocatedName& exact : *exact_names_) {
      if (known.contains(exact.name)) continue;
      findings.add(exact.location, "no layer is called '{}'{}", exact.name,
                   findings.has_room() ? suggestion(exact.name, layer_names) : "");
    }
  } else if (regex_) {
    const auto key = std::ranges::find(keys_, kRegex, &LocatedName::name);
    if (none([&](const std::string& name) { return regex_->search(name); })) {
      findings.add(key->location, "the pattern is found in no layer's name");
    }
  } else {
    const std::size_t before = findings.size();
    if (numbers_) find_idle_numbers(layer_names, findings);
    for (const LocatedName& type : types_.value_or(std::vector<LocatedName>{})) {
      if (is_all(type.name)) continue;
      if (none([&](const std::string& name) { return contains(name, type.name); })) {
        findings.add(type.location, "no layer's name contains '{}'", type.name);
      }
    }
    if (findings.size() == before && !layer_names.empty() &&
        none([&](const std::string& name) { return selects(name); })) {
      findings.add(keys_.front().location,
                   "no layer has one of the numbers and one of the types: both must fit");
    }
  }
}

void LayerSelector::find_outranked(ErrorList& findings) const {
  const std::string_view decisive = exact_names_ ? kExactNames : regex_ ? kRegex : "";
  if (decisive.empty()) return;
  for (const LocatedName& key : keys_) {
    if (key.name == decisive) continue;
    findings.add(key.location, "'{}' has no effect: '{}' decides", key.name, decisive);
  }
}

void LayerSelector::find_idle_numbers(std::span<const std::string> layer_names,
                                      ErrorList& findings) const {
  for (const NumberRange& range : *numbers_) {
    const auto has_it = [&](const std::string& name) {
      const auto number = layer_number(name);
      return number && range.first <= *number && *number <= range.last;
    };
    if (std::ranges::any_of(layer_names, has_it)) continue;
    if (range.last == kLargestNumber) {
      findings.add(range.location, "no layer's name has a number");
    } else if (range.first == range.last) {
      findings.add(range.location, "no layer has the number {}", range.first);
    } else {
      findings.add(range.location, "no layer has a number from {} to {}", range.first, range.last);
    }
  }
}

}  // namespace telens::config
