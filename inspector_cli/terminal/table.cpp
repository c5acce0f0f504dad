#include "inspector_cli/terminal/table.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <nlohmann/json.hpp>

#include "core/base/error.h"
#include "core/base/printable.h"
#include "hooks/config/suggestions.h"
#include "inspector_cli/terminal/number_text.h"
#include "inspector_cli/terminal/table_text.h"

namespace telens::cli {
namespace {

std::string exact(double value) {
  if (std::isnan(value)) return "NaN";
  if (std::isinf(value)) return value > 0 ? "Infinity" : "-Infinity";
  return fmt::format("{}", value);
}

// A spreadsheet takes a cell that begins so for a formula, wide or narrow; a single
// quote before it says that it is text (OWASP, "CSV Injection").
bool looks_like_a_formula(std::string_view text) {
  constexpr std::array<std::string_view, 8> kBeginnings{"=", "+", "-", "@", "＝", "＋", "－", "＠"};
  return std::ranges::any_of(kBeginnings, [&](auto each) { return text.starts_with(each); });
}

std::string csv_text(const Cell& cell) {
  if (const auto* value = std::get_if<double>(&cell)) return exact(*value);
  std::string text = short_text(cell);
  const auto* name = std::get_if<std::string>(&cell);
  if (name != nullptr && looks_like_a_formula(text)) text.insert(0, "'");
  if (text.find_first_of(",\"") == std::string::npos) return text;
  std::string quoted = "\"";
  for (const char c : text) quoted += c == '"' ? std::string("\"\"") : std::string(1, c);
  return quoted + "\"";
}

Json json_value(const Cell& cell) {
  if (const auto* text = std::get_if<std::string>(&cell)) return json_text(*text);
  if (const auto* value = std::get_if<double>(&cell)) return json_number(*value);
  if (const auto* count = std::get_if<std::int64_t>(&cell)) return *count;
  if (const auto* list = std::get_if<std::vector<std::int64_t>>(&cell)) return *list;
  return nullptr;
}

// The end of a run of digits that begins at `at`.
std::size_t end_of_digits(std::string_view text, std::size_t at) {
  while (at < text.size() && text[at] >= '0' && text[at] <= '9') ++at;
  return at;
}

// Runs of digits by their value: "layers.2" before "layers.10".
bool comes_before(std::string_view a, std::string_view b) {
  std::size_t i = 0;
  std::size_t j = 0;
  while (i < a.size() && j < b.size()) {
    const std::size_t end_i = end_of_digits(a, i);
    const std::size_t end_j = end_of_digits(b, j);
    if (end_i > i && end_j > j) {
      const auto digits = [](std::string_view text) {
        return text.substr(std::min(text.find_first_not_of('0'), text.size()));
      };
      const std::string_view left = digits(a.substr(i, end_i - i));
      const std::string_view right = digits(b.substr(j, end_j - j));
      if (left.size() != right.size()) return left.size() < right.size();
      if (left != right) return left < right;
      i = end_i;
      j = end_j;
    } else if (a[i] != b[j]) {
      return a[i] < b[j];
    } else {
      ++i;
      ++j;
    }
  }
  return a.size() - i < b.size() - j;
}

double to_number(const Cell& cell) {
  if (const auto* count = std::get_if<std::int64_t>(&cell)) return static_cast<double>(*count);
  return std::get<double>(cell);
}

bool is_empty(const Cell& cell) {
  const auto* text = std::get_if<std::string>(&cell);
  const auto* list = std::get_if<std::vector<std::int64_t>>(&cell);
  return std::holds_alternative<std::monostate>(cell) || (text != nullptr && text->empty()) ||
         (list != nullptr && list->empty());
}

std::string sorted_text(const Cell& cell) {
  const auto* text = std::get_if<std::string>(&cell);
  return text != nullptr ? *text : short_text(cell);
}

// NaN before all numbers.
bool sorts_before(const Cell& a, const Cell& b) {
  if (is_empty(a) || is_empty(b)) return !is_empty(a) && is_empty(b);
  if (is_number(a) != is_number(b)) return is_number(a);
  if (!is_number(a)) return comes_before(sorted_text(a), sorted_text(b));
  const double left = to_number(a);
  const double right = to_number(b);
  if (std::isnan(left) || std::isnan(right)) return std::isnan(left) && !std::isnan(right);
  return left > right;
}

}  // namespace

std::string short_text(const Cell& cell) {
  if (const auto* text = std::get_if<std::string>(&cell)) return printable(*text);
  if (const auto* count = std::get_if<std::int64_t>(&cell)) return fmt::format("{}", *count);
  if (const auto* value = std::get_if<double>(&cell)) return number_text(*value);
  if (const auto* list = std::get_if<std::vector<std::int64_t>>(&cell))
    return fmt::format("{}", fmt::join(*list, ", "));
  return "";
}

bool is_number(const Cell& cell) {
  return std::holds_alternative<std::int64_t>(cell) || std::holds_alternative<double>(cell);
}

void Table::sort_by(std::string_view column) {
  const auto found = std::ranges::find(columns_, column);
  if (found == columns_.end()) {
    const std::string near = config::suggestion(column, columns_);
    raise<UsageError>("--sort: there is no column '{}'{}", column,
                      near.empty() ? "; there are " + config::quoted_list(columns_) : near);
  }
  const auto index = static_cast<std::size_t>(found - columns_.begin());
  std::ranges::stable_sort(
      rows_, [&](const auto& a, const auto& b) { return sorts_before(a[index], b[index]); });
}

void Table::reverse() { std::ranges::reverse(rows_); }

void Table::keep_first(std::size_t rows) {
  if (rows < rows_.size()) rows_.resize(rows);
}

void Table::drop_where_empty(std::string_view column) {
  const auto index =
      static_cast<std::size_t>(std::ranges::find(columns_, column) - columns_.begin());
  const bool empty = std::ranges::all_of(rows_, [&](const auto& row) {
    const auto* count = std::get_if<std::int64_t>(&row[index]);
    return is_empty(row[index]) || (count != nullptr && *count == 0);
  });
  if (!empty) return;
  columns_.erase(columns_.begin() + static_cast<std::ptrdiff_t>(index));
  for (auto& row : rows_) row.erase(row.begin() + static_cast<std::ptrdiff_t>(index));
}

std::string Table::render(Format format, std::size_t width) const {
  switch (format) {
    case Format::csv:
      return as_csv();
    case Format::json:
      return json_lines(json()) + "\n";
    case Format::table:
      break;
  }
  return table_text({columns_, rows_, expendable_}, width);
}

std::string Table::as_csv() const {
  std::string out;
  const auto end_cell = [&](std::size_t i) { out += i + 1 < columns_.size() ? ',' : '\n'; };
  for (std::size_t i = 0; i < columns_.size(); ++i) {
    out += csv_text(columns_[i]);
    end_cell(i);
  }
  for (const auto& row : rows_) {
    for (std::size_t i = 0; i < row.size(); ++i) {
      out += csv_text(row[i]);
      end_cell(i);
    }
  }
  return out;
}

Json Table::json() const {
  Json objects = Json::array();
  for (const auto& row : rows_) {
    Json object = Json::object();
    for (std::size_t i = 0; i < columns_.size(); ++i) object[columns_[i]] = json_value(row[i]);
    objects.push_back(std::move(object));
  }
  return objects;
}

}  // namespace telens::cli
