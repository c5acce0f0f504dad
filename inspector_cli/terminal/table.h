// A table of named columns, written as aligned text, CSV (RFC 4180) or a JSON list of objects.
// Names come from files: what is unseen in them is escaped (core/base/printable.h), in JSON by its
// own escapes; in CSV no name is a formula.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "core/base/copy_may_throw.h"
#include "inspector_cli/terminal/json.h"

namespace telens::cli {

enum class Format : std::uint8_t { table, csv, json };

// Nothing: an empty cell (JSON: null). Numbers are shortened in text, exact in CSV and JSON. A list
// is one in JSON, and "0, 2" elsewhere.
using Cell = std::variant<std::monostate, std::string, std::int64_t, double,
                          std::vector<std::int64_t>, CopyMayThrow>;

class Table {
 public:
  explicit Table(std::vector<std::string> columns) : columns_(std::move(columns)) {}
  void add(std::vector<Cell> row) { rows_.push_back(std::move(row)); }
  std::size_t size() const { return rows_.size(); }
  const std::vector<std::string>& columns() const { return columns_; }
  const std::vector<std::vector<Cell>>& rows() const { return rows_; }

  // Numbers the largest first, names in their order ("layers.2" before "layers.10"), what is empty
  // at the end; rows that are equal stay as they were. Throws UsageError for a column that is none.
  void sort_by(std::string_view column);
  void reverse();
  void keep_first(std::size_t rows);
  // A column of which no row has anything: worth a place where a program reads it alone.
  void drop_where_empty(std::string_view column);

  // Columns that a narrow terminal leaves out, in this order; then the last ones go.
  void may_lack(std::vector<std::string> columns) { expendable_ = std::move(columns); }

  // width: that the text has to fit, a terminal's; 0: whole, as a pipe gets it.
  std::string render(Format format, std::size_t width = 0) const;
  // A list of objects; null for empty cells.
  Json json() const;

 private:
  std::string as_csv() const;

  std::vector<std::string> columns_;
  std::vector<std::vector<Cell>> rows_;
  std::vector<std::string> expendable_;
};

// As a table's text shows it, printable.
std::string short_text(const Cell& cell);
bool is_number(const Cell& cell);

}  // namespace telens::cli
