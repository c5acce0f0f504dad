// A table of named columns, rendered as aligned text, CSV (RFC 4180) or a JSON list of objects.
// Names come from run files: control characters are escaped (core/base/text.h), in JSON by
// JSON escapes, and no CSV cell is a formula.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "core/base/copy_may_throw.h"
#include "core/base/json.h"

namespace telens::cli {

enum class Format : std::uint8_t { table, csv, json };

// std::monostate is an empty cell (null in JSON). Numbers are rounded in text, exact in CSV and
// JSON. A list is a list in JSON and "0, 2" elsewhere.
using Cell = std::variant<std::monostate, std::string, std::int64_t, double,
                          std::vector<std::int64_t>, CopyMayThrow>;

class Table {
 public:
  explicit Table(std::vector<std::string> columns) : columns_(std::move(columns)) {}
  void add(std::vector<Cell> row) { rows_.push_back(std::move(row)); }
  std::size_t size() const { return rows_.size(); }
  const std::vector<std::string>& columns() const { return columns_; }
  const std::vector<std::vector<Cell>>& rows() const { return rows_; }

  // Sorts stably: numbers descending, names in natural order ("layers.2" before "layers.10"), empty
  // cells last. Throws UsageError if the column does not exist.
  void sort_by(std::string_view column);
  void reverse();
  void keep_first(std::size_t rows);
  // Removes the column if all its cells are empty or 0.
  void drop_where_empty(std::string_view column);

  // Sets the columns to hide first on a narrow terminal, in this order. After these, the last
  // columns are hidden.
  void may_lack(std::vector<std::string> columns) { expendable_ = std::move(columns); }

  // Returns the table as text that fits `width` columns if words allow. 0 means unlimited.
  std::string render(Format format, std::size_t width = 0) const;
  // Returns a list of objects, with null for empty cells.
  Json json() const;

 private:
  std::string as_csv() const;

  std::vector<std::string> columns_;
  std::vector<std::vector<Cell>> rows_;
  std::vector<std::string> expendable_;
};

// Returns JSON with each element of a list, or of a list in an object, on its own line.
std::string json_lines(const Json& json);

// Returns the cell as text output shows it, printable.
std::string short_text(const Cell& cell);
bool is_number(const Cell& cell);

}  // namespace telens::cli
