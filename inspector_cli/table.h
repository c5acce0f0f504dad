// A table of named columns, written as aligned text, CSV (RFC 4180) or a JSON list of objects.
#pragma once

#include <cstdint>
#include <string>
#include <variant>
#include <vector>

namespace telens::cli {

enum class Format : std::uint8_t { table, csv, json };

// Nothing: an empty cell (JSON: null). Numbers are shortened in text, exact in CSV and JSON.
using Cell = std::variant<std::monostate, std::string, std::int64_t, double>;

class Table {
 public:
  explicit Table(std::vector<std::string> columns) : columns_(std::move(columns)) {}
  void add(std::vector<Cell> row) { rows_.push_back(std::move(row)); }
  std::size_t size() const { return rows_.size(); }

  std::string render(Format format) const;

 private:
  std::string as_text() const;
  std::string as_csv() const;
  std::string as_json() const;

  std::vector<std::string> columns_;
  std::vector<std::vector<Cell>> rows_;
};

// A JSON string with its quotes. Also valid JavaScript inside <script>: "</" is escaped.
std::string json_text(std::string_view text);
// A JSON number, or "NaN", "Infinity", "-Infinity" as a string: JSON has no numbers for them.
std::string json_number(double value);

}  // namespace telens::cli
