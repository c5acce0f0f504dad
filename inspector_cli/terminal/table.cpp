#include "inspector_cli/terminal/table.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <iterator>
#include <nlohmann/json.hpp>

#include "core/base/error.h"
#include "core/base/text.h"
#include "hooks/config/suggestions.h"
#include "inspector_cli/terminal/terminal.h"
#include "inspector_cli/terminal/text.h"

namespace telens::cli {
namespace {

std::string exact(double value) {
  if (std::isnan(value)) return "NaN";
  if (std::isinf(value)) return value > 0 ? "Infinity" : "-Infinity";
  return fmt::format("{}", value);
}

// Returns true if a spreadsheet would evaluate the text as a formula (ASCII or full-width
// characters). A leading single quote marks it as text (OWASP, "CSV Injection").
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

// Returns the end of the run of digits that begins at `at`.
std::size_t end_of_digits(std::string_view text, std::size_t at) {
  while (at < text.size() && text[at] >= '0' && text[at] <= '9') ++at;
  return at;
}

// Compares runs of digits by value: "layers.2" before "layers.10".
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

// Sorts numbers descending, NaN first, then texts, then empty cells.
bool sorts_before(const Cell& a, const Cell& b) {
  if (is_empty(a) || is_empty(b)) return !is_empty(a) && is_empty(b);
  if (is_number(a) != is_number(b)) return is_number(a);
  if (!is_number(a)) return comes_before(sorted_text(a), sorted_text(b));
  const double left = to_number(a);
  const double right = to_number(b);
  if (std::isnan(left) || std::isnan(right)) return std::isnan(left) && !std::isnan(right);
  return left > right;
}

constexpr std::string_view kGap = "  ";
constexpr std::string_view kLayer = "layer";
constexpr std::size_t kLeastWidth = 8;    // of a wrapped column
constexpr std::size_t kLeastColumns = 3;  // that a narrow table keeps
// A layer name is cut in the middle if it needs more lines, and a word if it is wider than half a
// line and longer than this.
constexpr std::size_t kMostLines = 2;
constexpr std::size_t kLongestWord = 24;
// Values that all rows share are printed once if there are at least this many rows.
constexpr std::size_t kLeastRows = 3;

using Lines = std::vector<std::string>;

// A word ends after these characters.
constexpr std::string_view kWordEnds = " ./_,";

struct Column {
  std::string name;
  Lines cells;
  bool numbers = false;
  std::size_t width = 0;

  bool is_empty() const { return is_all(""); }
  bool is_all(std::string_view text) const {
    return std::ranges::all_of(cells, [&](const std::string& cell) { return cell == text; });
  }
};

std::size_t widest(const Lines& lines) {
  std::size_t width = 0;
  for (const std::string& line : lines) width = std::max(width, get_columns(line));
  return width;
}

// Returns the width of a column if its heading and texts are wrapped to `most`. Numbers are not
// wrapped.
std::size_t width_at_most(const Column& column, std::size_t most) {
  std::size_t width = widest(wrapped(column.name, most));
  for (const std::string& cell : column.cells) {
    width = std::max(width, column.numbers ? get_columns(cell) : widest(wrapped(cell, most)));
  }
  return width;
}

std::size_t sum_total(const std::vector<Column>& columns) {
  std::size_t total = columns.empty() ? 0 : kGap.size() * (columns.size() - 1);
  for (const Column& column : columns) total += column.width;
  return total;
}

std::vector<Column> columns_from(const std::vector<std::string>& names,
                                 const std::vector<std::vector<Cell>>& rows) {
  std::vector<Column> columns;
  for (std::size_t i = 0; i < names.size(); ++i) {
    Column column{names[i], {}};
    for (const auto& row : rows) {
      column.cells.push_back(short_text(row[i]));
      column.numbers = column.numbers || is_number(row[i]);
    }
    column.width = std::max(get_columns(column.name), widest(column.cells));
    columns.push_back(std::move(column));
  }
  return columns;
}

std::string padded(const std::string& text, std::size_t width, bool right) {
  const std::string space(width - std::min(width, get_columns(text)), ' ');
  return right ? space + text : text + space;
}

// Formats a row; it has as many lines as its tallest cell.
template <typename TextOf>
std::string row_text(const std::vector<Column>& columns, const TextOf& to_text) {
  std::vector<Lines> cells;
  std::size_t height = 1;
  for (const Column& column : columns) {
    const std::string text = to_text(column);
    const bool fits = get_columns(text) <= column.width;
    cells.push_back(fits ? Lines{text} : wrapped(text, column.width));
    height = std::max(height, cells.back().size());
  }
  std::vector<std::string> lines(height);
  for (std::size_t line = 0; line < height; ++line) {
    for (std::size_t i = 0; i < columns.size(); ++i) {
      const std::string text = line < cells[i].size() ? cells[i][line] : "";
      if (i > 0) lines[line] += kGap;
      lines[line] += padded(text, columns[i].width, columns[i].numbers);
    }
    lines[line].erase(lines[line].find_last_not_of(' ') + 1);
  }
  return fmt::format("{}", fmt::join(lines, "\n"));
}

// The result of fitting a table into a width.
struct Fitted {
  Lines above;                      // values that all rows share, printed above the table
  std::vector<std::string> hidden;  // names of columns that did not fit
  bool is_cut = false;              // true if a name or word was shortened
};

// Cuts the words that would fill most of a line of `width` columns.
std::string cut_words(const std::string& text, std::size_t width) {
  const std::size_t longest_word = std::max(width / 2, kLongestWord);
  std::string words;
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t end = std::min(text.find_first_of(kWordEnds, at), text.size() - 1) + 1;
    words += cut_in_the_middle(std::string_view(text).substr(at, end - at), longest_word);
    at = end;
  }
  return words;
}

std::string cut_name(const std::string& name, std::size_t width) {
  return cut_in_the_middle(cut_words(name, width), kMostLines * width);
}

bool cut_texts(std::vector<Column>& columns, std::size_t width) {
  bool is_cut = false;
  for (Column& column : columns) {
    if (column.numbers || column.width <= width / 2) continue;
    for (std::string& cell : column.cells) {
      std::string cut = column.name == kLayer ? cut_name(cell, width) : cut_words(cell, width);
      is_cut = is_cut || cut != cell;
      cell = std::move(cut);
    }
    column.width = std::max(get_columns(column.name), widest(column.cells));
  }
  return is_cut;
}

std::string strip_layers(std::vector<Column>& columns) {
  const auto layer =
      std::ranges::find_if(columns, [](const Column& each) { return each.name == kLayer; });
  if (layer == columns.end()) return "";
  const CommonParts common = common_parts(layer->cells);
  if (!common.any()) return "";
  for (std::string& cell : layer->cells) cell = common.without(cell);
  layer->width = std::max(get_columns(layer->name), widest(layer->cells));
  return common.sentence();
}

// Returns the text that all rows of the column have, "as NAME" if another column has equal cells,
// or
// "" if neither is the case.
std::string shared_text(const std::vector<Column>& columns, const Column& column) {
  for (const Column& other : columns) {
    const bool is_other = &other != &column && !column.numbers;
    if (is_other && other.cells == column.cells) return fmt::format("as {}", other.name);
  }
  return column.is_all(column.cells.front()) ? column.cells.front() : "";
}

// Moves columns with equal cells in all rows, the widest first, into a line above the table, until
// the rest fits.
std::string extract_constant_columns(std::vector<Column>& columns, std::size_t width) {
  Lines shared;
  while (sum_total(columns) > width && columns.size() > kLeastColumns) {
    auto widest = columns.end();
    for (auto column = columns.begin(); column != columns.end(); ++column) {
      if (shared_text(columns, *column).empty()) continue;
      if (widest == columns.end() || column->width > widest->width) widest = column;
    }
    if (widest == columns.end()) break;
    const std::string text = shared_text(columns, *widest);
    shared.push_back(
        fmt::format("{}: {}", widest->name,
                    widest->name == kLayer ? cut_name(text, width) : cut_words(text, width)));
    columns.erase(widest);
  }
  return shared.empty() ? "" : fmt::format("same in all rows: {}", fmt::join(shared, "; "));
}

// Narrows the widest column until the table fits or no column can be narrower.
void wrap(std::vector<Column>& columns, std::size_t width) {
  std::vector<bool> is_done(columns.size(), false);
  while (sum_total(columns) > width) {
    std::size_t found = columns.size();
    for (std::size_t i = 0; i < columns.size(); ++i) {
      if (is_done[i] || columns[i].width <= kLeastWidth) continue;
      if (found == columns.size() || columns[i].width > columns[found].width) found = i;
    }
    if (found == columns.size()) return;
    const std::size_t narrower = width_at_most(columns[found], columns[found].width - 1);
    if (narrower >= columns[found].width) {
      is_done[found] = true;
    } else {
      columns[found].width = narrower;
    }
  }
}

std::vector<Column>::iterator next_to_hide(std::vector<Column>& columns,
                                           const std::vector<std::string>& expendable) {
  for (const std::string& name : expendable) {
    const auto found = std::ranges::find(columns, name, &Column::name);
    if (found != columns.end()) return found;
  }
  return std::prev(columns.end());
}

Fitted fit(std::vector<Column>& columns, const std::vector<std::string>& expendable,
           std::size_t width) {
  Fitted fitted;
  std::erase_if(columns, [](const Column& column) { return column.is_empty(); });
  if (sum_total(columns) > width) {
    const std::string layers = strip_layers(columns);
    if (!layers.empty()) fitted.above.push_back(cut_name(layers, width));
  }
  if (!columns.empty() && columns.front().cells.size() >= kLeastRows) {
    std::ranges::move(wrapped(extract_constant_columns(columns, width), width),
                      std::back_inserter(fitted.above));
    std::erase(fitted.above, "");
  }
  fitted.is_cut = cut_texts(columns, width);
  std::vector<Column> kept = columns;
  for (wrap(columns, width); sum_total(columns) > width && kept.size() > kLeastColumns;
       wrap(columns, width)) {
    const auto out = next_to_hide(kept, expendable);
    fitted.hidden.push_back(out->name);
    kept.erase(out);
    columns = kept;
  }
  return fitted;
}

// Returns the table as aligned text. If `width` is not 0, fits it: hides empty columns, moves
// shared parts of layer names and constant columns above the table, wraps texts, and then hides
// columns.
std::string table_text(const std::vector<std::string>& names,
                       const std::vector<std::vector<Cell>>& rows,
                       const std::vector<std::string>& expendable, std::size_t width) {
  std::vector<Column> columns = columns_from(names, rows);
  Fitted fitted;
  if (width > 0 && !rows.empty()) fitted = fit(columns, expendable, width);
  std::string out;
  for (const std::string& line : fitted.above) out += colored(line, Color::dim) + "\n";
  const std::string heading = row_text(columns, [](const Column& each) { return each.name; });
  for (std::size_t at = 0; at < heading.size();) {  // colors end at each line's end
    const std::size_t end = std::min(heading.find('\n', at), heading.size());
    out += colored(heading.substr(at, end - at), Color::bold) + "\n";
    at = end + 1;
  }
  for (std::size_t row = 0; row < rows.size(); ++row) {
    out += row_text(columns, [row](const Column& each) { return each.cells[row]; }) + "\n";
  }
  if (!fitted.hidden.empty()) {
    out += colored(fmt::format("hidden columns (terminal too narrow): {}; --format csv prints all",
                               fmt::join(fitted.hidden, ", ")),
                   Color::dim) +
           "\n";
  }
  if (fitted.is_cut) {
    out += colored("~ marks shortened names; --format csv prints them in full", Color::dim);
    out += "\n";
  }
  return out;
}

}  // namespace

std::string json_lines(const Json& json) {
  std::string text;
  if (json.is_array()) {
    for (const Json& element : json) {
      text += fmt::format("{}\n {}", text.empty() ? "" : ",", json_line(element));
    }
    return fmt::format("[{}\n]", text);
  }
  if (!json.is_object()) return json_line(json);
  for (const auto& [key, value] : json.items()) {
    text += fmt::format("{}{}: {}", text.empty() ? "" : ",\n", json_line(key),
                        value.is_array() && !value.empty() ? json_lines(value) : json_line(value));
  }
  return fmt::format("{{{}}}", text);
}

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
    raise<UsageError>("--sort: no column '{}'{}", column,
                      near.empty() ? "; expected one of " + config::quoted_list(columns_) : near);
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
  return table_text(columns_, rows_, expendable_, width);
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
