// Selects the layers of a section.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "hooks/config/error_list.h"
#include "hooks/config/python_regex.h"
#include "hooks/config/value.h"

namespace telens::config {

struct NumberRange {
  std::int64_t first;
  std::int64_t last;  // inclusive
  Location location = {};
};

struct LocatedName {
  std::string name;
  Location location;
};

// The names that a `layers:` map selects. exact_layer_names decides if present; otherwise the
// regex; otherwise numbers and types together.
class LayerSelector {
 public:
  // Returns true for a key of the 'layers:' map.
  static bool is_key(std::string_view word);
  // Adds mistakes to the errors; the result then selects unspecified layers.
  static LayerSelector parse(const Value& layers, ErrorList& errors);

  bool selects(std::string_view layer_name) const;

  // Finds parts without effect on layers with these names: names, numbers and types without a
  // matching layer, and keys that a stronger key overrides. Each finding has a location.
  void find_idle(std::span<const std::string> layer_names, ErrorList& findings) const;

 private:
  void find_outranked(ErrorList& findings) const;
  void find_idle_numbers(std::span<const std::string> layer_names, ErrorList& findings) const;
  bool selects_number_of(std::string_view layer_name) const;
  bool selects_type_of(std::string_view layer_name) const;

  std::optional<std::vector<LocatedName>> exact_names_;
  std::optional<PythonRegex> regex_;
  std::optional<std::vector<NumberRange>> numbers_;
  std::optional<std::vector<LocatedName>> types_;
  bool all_types_ = false;
  std::vector<LocatedName> keys_;  // in the order of the map
};

// Returns the first number in a layer's name for layer_numbers. The digits of fc1 and of gemm_0 are
// not layer numbers. "model.layers.3.mlp.fc1" -> 3.
std::optional<std::int64_t> layer_number(std::string_view layer_name);

}  // namespace telens::config
