// A tree of configuration values with their locations in the text. Built from YAML text
// (hooks/config/yaml_reader.h), or by the constructors for a caller that has a dict.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

namespace telens::config {

// The location of a value. Line and column count from 1; line 0 if the value is not from a text.
struct Location {
  std::shared_ptr<const std::string> source;  // file name; nullptr if unknown
  int line = 0;
  int column = 0;
};

// Returns "debug.yaml:12:5", "debug.yaml", or "config" if nothing is known.
std::string to_string(const Location& location);

class Value;

struct MapEntry;

// Copies share the tree, which is immutable: values are cheap to copy.
class Value {
 public:
  using List = std::vector<Value>;
  using Map = std::vector<MapEntry>;  // in text order, with unique keys

  Value() = default;  // null
  Value(std::nullptr_t) {}
  Value(bool value) : data_(value) {}
  Value(std::int64_t value) : data_(value) {}
  Value(int value) : data_(std::int64_t{value}) {}
  Value(double value) : data_(value) {}
  Value(std::string value);
  Value(std::string_view value) : Value(std::string(value)) {}
  Value(const char* value) : Value(std::string(value)) {}
  Value(List value);
  Value(Map value);
  Value(Value value, Location location) : Value(std::move(value)) {
    location_ = std::move(location);
  }

  bool is_null() const { return std::holds_alternative<std::monostate>(data_); }
  bool is_bool() const { return std::holds_alternative<bool>(data_); }
  bool is_integer() const { return std::holds_alternative<std::int64_t>(data_); }
  bool is_number() const { return is_integer() || std::holds_alternative<double>(data_); }
  bool is_string() const { return std::holds_alternative<Shared<std::string>>(data_); }
  bool is_list() const { return std::holds_alternative<Shared<List>>(data_); }
  bool is_map() const { return std::holds_alternative<Shared<Map>>(data_); }

  // Returns the value as the named kind; throws std::bad_variant_access for another kind.
  bool as_bool() const { return std::get<bool>(data_); }
  std::int64_t as_integer() const { return std::get<std::int64_t>(data_); }
  double as_number() const;  // also accepts an integer
  const std::string& as_string() const { return *std::get<Shared<std::string>>(data_); }
  const List& as_list() const { return *std::get<Shared<List>>(data_); }
  const Map& as_map() const { return *std::get<Shared<Map>>(data_); }

  // Returns the value of a key, or nullptr if the key is absent or this is not a map.
  const Value* find(std::string_view key) const;

  // Return a copy of this map with the key set to the value, with all entries of `over` set, or
  // with the key removed. Setting a present key replaces its value.
  Value with(std::string_view key, Value value) const;
  Value with_all(const Map& over) const;
  Value without(std::string_view key) const;

  const Location& location() const { return location_; }

  // Compares trees. Locations are ignored, 1 and 1.0 differ, and the order of a map's keys matters.
  friend bool operator==(const Value& a, const Value& b);

 private:
  template <typename T>
  using Shared = std::shared_ptr<const T>;

  // Copying never throws. libstdc++ 12 destroys the wrong alternative if copying a std::string
  // inside a variant runs out of memory.
  std::variant<std::monostate, bool, std::int64_t, double, Shared<std::string>, Shared<List>,
               Shared<Map>>
      data_;
  Location location_;
};

struct MapEntry {
  std::string key;
  Value value;
  Location key_location = {};
};

// The longest text that a message quotes, in bytes.
inline constexpr std::size_t kLongestQuote = 100;

// Returns the text, or its first `bytes` followed by "...", cut between UTF-8 characters.
std::string quotable(std::string_view text, std::size_t bytes = kLongestQuote);

// Describes the value for an error message: "the list [1, 2]", "the string 'a'", "null". A long
// text is truncated.
std::string describe(const Value& value);

// Returns the value as JSON, which is also YAML. Infinities and NaN use YAML's syntax (.inf).
std::string to_json(const Value& value);

}  // namespace telens::config
