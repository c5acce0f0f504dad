#include "hooks/config/value.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <unordered_map>

namespace telens::config {
namespace {

// The maximum length of a value in a message.
constexpr std::size_t kDescribedLength = 60;

std::string json_string(std::string_view text) {
  std::string json = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') {
      json += '\\';
      json += c;
    } else if (c == '\n') {
      json += "\\n";
    } else if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f) {
      json += fmt::format("\\u{:04x}", static_cast<unsigned>(c));
    } else {
      json += c;
    }
  }
  return json + '"';
}

std::string json_number(double value) {
  if (std::isnan(value)) return ".nan";
  if (std::isinf(value)) return value > 0 ? ".inf" : "-.inf";
  std::string text = fmt::format("{}", value);
  // YAML 1.1 reads "1e+20" as a string: a real number needs a point.
  if (const auto exponent = text.find('e'); text.find('.') == std::string::npos) {
    text.insert(std::min(exponent, text.size()), ".0");
  }
  return text;
}

// Truncates a UTF-8 text to at most `bytes`, between characters.
std::string_view shortened(std::string_view text, std::size_t bytes) {
  const auto is_continuation = [](char c) { return (c & 0xc0) == 0x80; };
  while (bytes > 0 && is_continuation(text[bytes])) --bytes;
  return text.substr(0, bytes);
}

// Appends the value as JSON. Stops after the value that makes `json` longer than `most` bytes.
void append_json(std::string& json, const Value& value, std::size_t most) {
  if (json.size() > most) return;
  if (value.is_null()) {
    json += "null";
  } else if (value.is_bool()) {
    json += value.as_bool() ? "true" : "false";
  } else if (value.is_integer()) {
    json += fmt::format("{}", value.as_integer());
  } else if (value.is_number()) {
    json += json_number(value.as_number());
  } else if (value.is_string()) {
    const std::string_view text = value.as_string();
    json += json_string(text.size() > most ? shortened(text, most) : text);
  } else if (value.is_list()) {
    json += '[';
    const char* separator = "";
    for (const Value& item : value.as_list()) {
      json += separator;
      append_json(json, item, most);
      if (json.size() > most) return;
      separator = ", ";
    }
    json += ']';
  } else {
    json += '{';
    const char* separator = "";
    for (const MapEntry& entry : value.as_map()) {
      const std::string_view key = entry.key;
      json += separator + json_string(key.size() > most ? shortened(key, most) : key) + ": ";
      append_json(json, entry.value, most);
      if (json.size() > most) return;
      separator = ", ";
    }
    json += '}';
  }
}

}  // namespace

std::string quotable(std::string_view text, std::size_t bytes) {
  if (text.size() <= bytes) return std::string(text);
  return std::string(shortened(text, bytes)) + "...";
}

std::string to_string(const Location& location) {
  if (!location.source) return "config";
  if (location.line == 0) return *location.source;
  return fmt::format("{}:{}:{}", *location.source, location.line, location.column);
}

Value::Value(std::string value) : data_(std::make_shared<const std::string>(std::move(value))) {}
Value::Value(List value) : data_(std::make_shared<const List>(std::move(value))) {}
Value::Value(Map value) : data_(std::make_shared<const Map>(std::move(value))) {}

double Value::as_number() const {
  return is_integer() ? static_cast<double>(as_integer()) : std::get<double>(data_);
}

const Value* Value::find(std::string_view key) const {
  if (!is_map()) return nullptr;
  const auto found = std::ranges::find(as_map(), key, &MapEntry::key);
  return found == as_map().end() ? nullptr : &found->value;
}

Value Value::with(std::string_view key, Value value) const {
  Map map = as_map();
  const auto found = std::ranges::find(map, key, &MapEntry::key);
  if (found == map.end()) {
    map.push_back({std::string(key), std::move(value)});
  } else {
    found->value = std::move(value);
  }
  return Value(std::move(map), location_);
}

Value Value::with_all(const Map& over) const {
  Map map = as_map();
  std::unordered_map<std::string_view, std::size_t> places;  // in `map`, by key
  for (std::size_t i = 0; i < map.size(); ++i) places.emplace(as_map()[i].key, i);
  for (const MapEntry& entry : over) {
    const auto [known, is_new] = places.try_emplace(entry.key, map.size());
    if (is_new) {
      map.push_back({entry.key, entry.value});
    } else {
      map[known->second].value = entry.value;
    }
  }
  return Value(std::move(map), location_);
}

Value Value::without(std::string_view key) const {
  Map map = as_map();
  std::erase_if(map, [&](const MapEntry& entry) { return entry.key == key; });
  return Value(std::move(map), location_);
}

bool operator==(const Value& a, const Value& b) {
  if (a.data_.index() != b.data_.index()) return false;
  if (a.data_ == b.data_) return true;  // equal numbers, or one shared tree
  if (a.is_string()) return a.as_string() == b.as_string();
  if (a.is_list()) return a.as_list() == b.as_list();
  if (a.is_map()) {
    return std::ranges::equal(a.as_map(), b.as_map(), [](const MapEntry& x, const MapEntry& y) {
      return x.key == y.key && x.value == y.value;
    });
  }
  return false;
}

std::string describe(const Value& value) {
  if (value.is_null()) return "nothing (null)";
  if (value.is_string()) return fmt::format("the string '{}'", quotable(value.as_string()));
  std::string text;
  append_json(text, value, kDescribedLength);
  if (text.size() > kDescribedLength) {
    text = std::string(shortened(text, kDescribedLength - 3)) + "...";
  }
  if (value.is_list()) return "the list " + text;
  if (value.is_map()) return "the mapping " + text;
  if (value.is_bool()) return "the boolean " + text;
  return "the number " + text;
}

std::string to_json(const Value& value) {
  std::string json;
  append_json(json, value, std::numeric_limits<std::size_t>::max());
  return json;
}

}  // namespace telens::config
