// Selects the layers that a section is for.
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

// The names that a `layers:` map selects. exact_layer_names decides if present, else the regex,
// else numbers and types together.
class LayerSelector {
 public:
  // A key that stands under 'layers:'.
  static bool is_key(std::string_view word);
  // Mistakes go to the errors; the result then selects something, it does not matter what.
  static LayerSelector parse(const Value& layers, ErrorList& errors);

  bool selects(std::string_view layer_name) const;

  // Finds parts of it that do nothing for layers of these names: names, numbers and types that none
  // has, and keys that a stronger one outranks. Each finding has its place.
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
  std::vector<LocatedName> keys_;  // as they stand in the map
};

// The first number in a layer's name, as layer_numbers counts it: the digits of fc1 and of gemm_0
// are no layer number. "model.layers.3.mlp.fc1" -> 3.
std::optional<std::int64_t> layer_number(std::string_view layer_name);

}  // namespace telens::config
